"""The settings: the bucket, its prefix for the deployment, and the principal of each role.

`settings_file` reads them and rejects a file that cannot be used, with the line of the error.
"""

from enum import StrEnum
from typing import Final, Literal

import msgspec

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
            role's probes are reported as not tried.
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
    targets: tuple[Target, ...] = (Target.AWS,)

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
