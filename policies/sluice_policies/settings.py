"""The settings: the bucket, its prefix for the deployment, and the principal of each role.

A settings file that cannot be used is rejected with the line of the wrong key. `tomllib` does not
report line numbers of keys. Settings files are plain tables and keys, each key at the start of its
line, so a scan of the lines finds them. A key in an inline table has the line of the table.
"""

import re
import tomllib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

import msgspec

from sluice_policies.errors import BadSettings

Partition = Literal["aws", "aws-cn", "aws-us-gov"]
_PARTITIONS: Final[dict[str, Partition]] = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
"""Partitions by the start of the names of their regions."""


class RoleName(StrEnum):
    """The roles of a deployment; each has one identity policy."""

    GATEWAY = "gateway"
    RECONCILER = "reconciler"
    SPARK = "spark"
    MAINTAINER = "maintainer"
    CERTIFIER = "certifier"
    GC = "gc"
    AUDITOR = "auditor"
    OPERATOR = "operator"
    CONSOLE = "console"
    DEPLOYER = "deployer"


class Target(StrEnum):
    """The dialects that policies are rendered for."""

    AWS = "aws"
    VERSITYGW = "versitygw"


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; unknown keys are errors."""


def partition_of(region: str) -> Partition:
    """Return the partition of a region; its resources have ARNs and endpoints of this partition."""
    for start, partition in _PARTITIONS.items():
        if region.startswith(start):
            return partition
    return "aws"


class Bucket(_Table, frozen=True):
    """`[bucket]`: the bucket, and the deployment's place in it.

    Attributes:
        name: The name of a general-purpose bucket.
        account: The 12 digits of the account that owns the bucket and every role.
        prefix: The deployment's prefix, empty or ending in `/`; default: the whole bucket.
        neighbours: Prefixes of other owners in the same bucket.
        partition: `aws`, `aws-cn` or `aws-us-gov`; default: that of the region.
        region: The bucket's region.
    """

    name: str
    account: str
    prefix: str = ""
    neighbours: tuple[str, ...] = ()
    partition: Partition | Literal[""] = ""
    region: str = "us-east-1"

    def __post_init__(self) -> None:
        if not self.partition:
            msgspec.structs.force_setattr(self, "partition", partition_of(self.region))


class Encryption(_Table, frozen=True):
    """`[encryption]`: how every object is encrypted at rest.

    Attributes:
        mode: `sse-s3` (default) or `sse-kms`.
        kms_key: The ARN of the key, for `sse-kms`.
    """

    mode: Literal["sse-s3", "sse-kms"] = "sse-s3"
    kms_key: str = ""


class Network(_Table, frozen=True):
    """`[network]`: the required transport of requests.

    Attributes:
        require_tls: Whether plain HTTP is denied; False only for `versitygw` on a closed network.
        vpc_endpoint: The VPC endpoint that every role except the deployer must use; default: any.
    """

    require_tls: bool = True
    vpc_endpoint: str = ""


class BlobClass(StrEnum):
    """The storage class of old blobs; objects in each of them are read without a restore."""

    STANDARD = "standard"
    INTELLIGENT_TIERING = "intelligent-tiering"
    GLACIER_IR = "glacier-ir"


class LifecycleSettings(_Table, frozen=True):
    """`[lifecycle]`: the only cleanup that the store does automatically.

    Attributes:
        abort_multipart_days: Days until an unfinished multipart upload is aborted, 1 to 365.
        noncurrent_days: Days after which a superseded version of derived data or state is deleted,
            1 to 3650.
        blob_class: The storage class to which old blobs move; `standard` for no move.
        blob_class_days: Age at which they move, 1 to 3650. More than the retry horizon, so that
            orphans are deleted before.
    """

    abort_multipart_days: int = 7
    noncurrent_days: int = 3
    blob_class: BlobClass = BlobClass.STANDARD
    blob_class_days: int = 30


class ObjectLock(_Table, frozen=True):
    """`[object_lock]`: the default retention of each version of each object in the bucket.

    Attributes:
        mode: `GOVERNANCE` or `COMPLIANCE`.
        days: Days during which no role, including gc, can delete a version.
    """

    mode: Literal["GOVERNANCE", "COMPLIANCE"]
    days: int


class Notifications(_Table, frozen=True):
    """`[notifications]`: hints of new manifests for the reconciler, which also works without them.

    Attributes:
        eventbridge: Whether events are sent to EventBridge.
        queue_arn: The SQS queue that events are sent to; default: none.
    """

    eventbridge: bool = False
    queue_arn: str = ""


class RawBlobs(_Table, frozen=True):
    """`[raw_blobs]`: one optional rule, with the consequences listed in `docs/policies.md`.

    Attributes:
        require_if_none_match: Whether a blob is created once and never overwritten.
    """

    require_if_none_match: bool = False


class Role(_Table, frozen=True):
    """`[roles.<name>]`: the principal of one role.

    Attributes:
        arn: The IAM role, in the account of the bucket.
        user: The access key name on `versitygw`; default `sluice-<name>`.
        profile: The AWS profile with the role's credentials, for `verify`; default: none, and the
            role's probes are reported as not tried. `denials --live` and the console read with that
            of the auditor, by default with the credentials of the environment.
    """

    arn: str
    user: str = ""
    profile: str = ""


class Roles(_Table, frozen=True):
    """`[roles]`: every role, each with a separate principal."""

    gateway: Role
    reconciler: Role
    spark: Role
    maintainer: Role
    certifier: Role
    gc: Role
    auditor: Role
    operator: Role
    console: Role
    deployer: Role


class Settings(_Table, frozen=True):
    """The whole file; `version = 1` is required."""

    version: Literal[1]
    bucket: Bucket
    roles: Roles
    encryption: Encryption = Encryption()
    network: Network = Network()
    lifecycle: LifecycleSettings = LifecycleSettings()
    notifications: Notifications = Notifications()
    raw_blobs: RawBlobs = RawBlobs()
    object_lock: ObjectLock | None = None
    target: Target = Target.AWS

    def role(self, name: RoleName) -> Role:
        """Return the principal of a role."""
        found: Role = getattr(self.roles, name.value)
        return found

    def user(self, name: RoleName) -> str:
        """Return the access key name of a role on `versitygw`."""
        return self.role(name).user or f"sluice-{name.value}"

    def principal_of(self, name: RoleName, target: Target) -> str:
        """Return the name of a role's principal on a target."""
        return self.role(name).arn if target is Target.AWS else self.user(name)


def bucket_arn(settings: Settings) -> str:
    """Return the ARN of the bucket."""
    return f"arn:{settings.bucket.partition}:s3:::{settings.bucket.name}"


def objects_arn(settings: Settings, prefix: str = "") -> str:
    """Return the pattern of every object under a prefix of the deployment."""
    return f"{bucket_arn(settings)}/{settings.bucket.prefix}{prefix}*"


def object_arn(settings: Settings, key: str) -> str:
    """Return the ARN of one object; its key is relative to the deployment."""
    return f"{bucket_arn(settings)}/{settings.bucket.prefix}{key}"


def objects_arns(settings: Settings, prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the pattern of each prefix."""
    return tuple(objects_arn(settings, prefix) for prefix in prefixes)


_PATH: Final = re.compile(r"`\$((?:\.[a-z_]+|\[[^\]]*\])*)`")
_TABLE: Final = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(r"^\s*([A-Za-z0-9_\-.\"' ]+?)\s*=")
Violation = tuple[tuple[str, ...], str]

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_IPV4: Final = re.compile(r"\d+\.\d+\.\d+\.\d+")
_RESERVED_STARTS: Final = ("xn--", "sthree-", "amzn-s3-demo-")
_RESERVED_ENDS: Final = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")
_PREFIX: Final = re.compile(r"(?:[A-Za-z0-9!_.'()=-]+/)*")
_PREFIX_BYTES_MAX: Final = 200
_ROLE: Final = re.compile(
    r"arn:(aws|aws-cn|aws-us-gov):iam::(\d{12}):role/(?:[\w+=,.@-]+/)*[\w+=,.@-]{1,64}"
)
_KMS: Final = re.compile(r"arn:(aws|aws-cn|aws-us-gov):kms:[a-z0-9-]+:\d{12}:key/[\w-]+")
_SQS: Final = re.compile(r"arn:(aws|aws-cn|aws-us-gov):sqs:[a-z0-9-]+:\d{12}:[\w.-]+")
_VPCE: Final = re.compile(r"vpce-[0-9a-f]{8,17}")
_USER: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ABORT_DAYS_MAX: Final = 365
_LIFECYCLE_DAYS_MAX: Final = 3_650
_LOCK_DAYS_MAX: Final = 36_500


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line, counted from 1, of every table header and key."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        header, key = _TABLE.match(line), _KEY.match(line)
        if header is not None:
            table = _split(header[1])
            found.setdefault(table, number)
        elif key is not None:
            found.setdefault(table + _split(key[1]), number)
    return found


def line_of(text: str, path: tuple[str, ...]) -> int:
    """Return the line of a key, of the nearest table around it, or 1."""
    found = key_lines(text)
    while path and path not in found:
        path = path[:-1]
    return found.get(path, 1)


def _decode(text: str, source: str) -> Settings:
    try:
        return msgspec.convert(tomllib.loads(text), Settings)
    except msgspec.ValidationError as error:
        raise _invalid(text, source, str(error)) from error
    except (ValueError, RecursionError) as error:
        at = re.search(r"line (\d+)", str(error))
        raise BadSettings(source, int(at[1]) if at else 1, f"not TOML: {error}") from error


def _invalid(text: str, source: str, message: str) -> BadSettings:
    at = _PATH.search(message)
    path = tuple(re.findall(r"[a-z_]+", at[1])) if at else ()
    unknown = re.search(r"unknown field `([^`]+)`", message)
    if unknown is not None:
        path = (*path, unknown[1])
    missing = re.search(r"missing required field `([^`]+)` - at `\$\.roles`", message)
    if missing is not None:
        message = f"role {missing[1]!r} is missing; add [roles.{missing[1]}] with its arn"
    return BadSettings(source, line_of(text, path), message)


def parse_settings(text: str, source: str = "settings") -> Settings:
    """Parse settings from TOML."""
    settings = _decode(text, source)
    for path, reason in violations(settings):
        raise BadSettings(source, line_of(text, path), reason)
    return settings


def read_settings(path: Path) -> Settings:
    """Read the settings file."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        problem = f"cannot read settings: {error.strerror}; pass the path of an existing file"
        raise BadSettings(str(path), 1, problem) from error
    except UnicodeDecodeError as error:
        raise BadSettings(str(path), 1, f"cannot read settings: {error}") from error
    return parse_settings(text, str(path))


def _bucket_name(settings: Settings) -> Iterator[Violation]:
    name = settings.bucket.name
    reserved = name.startswith(_RESERVED_STARTS) or name.endswith(_RESERVED_ENDS)
    plain = _BUCKET.fullmatch(name) is not None and ".." not in name
    if not plain or _IPV4.fullmatch(name) is not None or reserved:
        rule = "3 to 63 of a-z, 0-9, '-' and '.'; not an IP address; no reserved prefix or suffix"
        yield ("bucket", "name"), f"{name!r} is not the name of a general-purpose bucket: {rule}"


def _account(settings: Settings) -> Iterator[Violation]:
    if re.fullmatch(r"\d{12}", settings.bucket.account) is None:
        yield ("bucket", "account"), f"{settings.bucket.account!r} is not 12 digits"


def _partition(settings: Settings) -> Iterator[Violation]:
    bucket = settings.bucket
    if bucket.partition != partition_of(bucket.region):
        yield (
            ("bucket", "partition"),
            f"region {bucket.region!r} is not in partition {bucket.partition!r}; remove the key",
        )
    named = (
        (("encryption", "kms_key"), _KMS.fullmatch(settings.encryption.kms_key)),
        (("notifications", "queue_arn"), _SQS.fullmatch(settings.notifications.queue_arn)),
    )
    for path, found in named:
        if found is not None and found[1] != bucket.partition:
            yield path, f"{found[0]!r} is not in the bucket's partition {bucket.partition!r}"


def _prefix_form(path: tuple[str, ...], prefix: str) -> Iterator[Violation]:
    if _PREFIX.fullmatch(prefix) is None or len(prefix.encode()) > _PREFIX_BYTES_MAX:
        rule = (
            f"empty, or plain segments each ending in '/', at most {_PREFIX_BYTES_MAX} bytes, "
            f"without '*', '?' and '$', which are patterns in policies"
        )
        yield path, f"{prefix!r} is not a prefix: {rule}"


def _prefixes(settings: Settings) -> Iterator[Violation]:
    bucket = settings.bucket
    yield from _prefix_form(("bucket", "prefix"), bucket.prefix)
    mine = [bucket.prefix, *bucket.neighbours]
    for index, neighbour in enumerate(bucket.neighbours, start=1):
        yield from _prefix_form(("bucket", "neighbours"), neighbour)
        for other in mine[:index]:
            if neighbour.startswith(other) or other.startswith(neighbour):
                short, long = sorted((other, neighbour), key=len)
                reason = f"{short!r} contains {long!r}: rules for one would apply to the other"
                yield ("bucket", "neighbours"), reason


def _roles(settings: Settings) -> Iterator[Violation]:
    seen: dict[str, RoleName] = {}
    for name in RoleName:
        path = ("roles", name.value, "arn")
        arn = settings.role(name).arn
        found = _ROLE.fullmatch(arn)
        if found is None:
            yield (
                path,
                f"{arn!r} is not the ARN of an IAM role; wildcards and sessions are not allowed",
            )
        elif found[1] != settings.bucket.partition or found[2] != settings.bucket.account:
            yield path, f"{arn!r} is not in the bucket's account and partition"
        if arn in seen:
            yield path, f"roles {seen[arn].value!r} and {name.value!r} have the same ARN"
        seen.setdefault(arn, name)


def _users(settings: Settings) -> Iterator[Violation]:
    seen: dict[str, RoleName] = {}
    for name in RoleName:
        path, user = ("roles", name.value, "user"), settings.user(name)
        if _USER.fullmatch(user) is None:
            yield path, f"{user!r} is not an access key name: 1 to 64 of A-Z, a-z, 0-9, '_' and '-'"
        if user in seen:
            yield path, f"roles {seen[user].value!r} and {name.value!r} have the same user"
        seen.setdefault(user, name)


def _encryption(settings: Settings) -> Iterator[Violation]:
    wanted, key = settings.encryption.mode == "sse-kms", settings.encryption.kms_key
    if wanted and _KMS.fullmatch(key) is None:
        yield ("encryption", "kms_key"), f"{key!r} is not the ARN of a KMS key, which sse-kms needs"
    if not wanted and key:
        yield ("encryption", "kms_key"), "key is set, but mode is not sse-kms"


def _network(settings: Settings) -> Iterator[Violation]:
    endpoint = settings.network.vpc_endpoint
    if endpoint and _VPCE.fullmatch(endpoint) is None:
        yield ("network", "vpc_endpoint"), f"{endpoint!r} is not an endpoint id of the form vpce-…"
    if not settings.network.require_tls and settings.target is Target.AWS:
        yield (
            ("network", "require_tls"),
            'TLS can be optional only for versitygw; set target = "versitygw"',
        )


def _clearing(settings: Settings) -> Iterator[Violation]:
    days = settings.lifecycle.abort_multipart_days
    if not 1 <= days <= _ABORT_DAYS_MAX:
        yield ("lifecycle", "abort_multipart_days"), f"{days} is not 1 to {_ABORT_DAYS_MAX} days"
    for name in ("noncurrent_days", "blob_class_days"):
        value = getattr(settings.lifecycle, name)
        if not 1 <= value <= _LIFECYCLE_DAYS_MAX:
            yield ("lifecycle", name), f"{value} is not 1 to {_LIFECYCLE_DAYS_MAX} days"
    lock = settings.object_lock
    if lock is not None and not 1 <= lock.days <= _LOCK_DAYS_MAX:
        yield ("object_lock", "days"), f"{lock.days} is not 1 to {_LOCK_DAYS_MAX} days"
    queue = settings.notifications.queue_arn
    if queue and _SQS.fullmatch(queue) is None:
        yield ("notifications", "queue_arn"), f"{queue!r} is not the ARN of a queue"


def violations(settings: Settings) -> Iterator[Violation]:
    """Yield the path of each unusable key and the reason, the most general first."""
    rules = (_bucket_name, _account, _partition, _prefixes, _roles, _users)
    for rule in (*rules, _encryption, _network, _clearing):
        yield from rule(settings)
