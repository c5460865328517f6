"""The settings file: one bucket, one deployment in it, and who may do what.

Every field has its meaning here and nowhere else. A file that cannot be used is refused with the
line that is wrong, before anything is rendered.
"""

from enum import StrEnum
from typing import Literal

import msgspec


class RoleName(StrEnum):
    """The parts a principal can play; each has one identity policy."""

    GATEWAY = "gateway"
    RECONCILER = "reconciler"
    SPARK = "spark"
    GC = "gc"
    AUDITOR = "auditor"
    OPERATOR = "operator"
    DEPLOYER = "deployer"


class Target(StrEnum):
    """The dialects that policies are rendered for."""

    AWS = "aws"
    VERSITYGW = "versitygw"


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: unknown keys are errors."""


class Bucket(_Table, frozen=True):
    """`[bucket]`: where the deployment lives.

    Attributes:
        name: The bucket, a name of a general-purpose bucket.
        account: The 12 digits of the account that owns it and every role.
        prefix: The deployment's prefix, empty or ending in `/`; default: the whole bucket.
        neighbours: Prefixes in the same bucket that belong to somebody else.
        partition: `aws`, `aws-cn` or `aws-us-gov`.
        region: The bucket's region.
    """

    name: str
    account: str
    prefix: str = ""
    neighbours: tuple[str, ...] = ()
    partition: Literal["aws", "aws-cn", "aws-us-gov"] = "aws"
    region: str = "us-east-1"


class Encryption(_Table, frozen=True):
    """`[encryption]`: how every object is encrypted at rest.

    Attributes:
        mode: `sse-s3` (default) or `sse-kms`.
        kms_key: The ARN of the key, for `sse-kms`.
    """

    mode: Literal["sse-s3", "sse-kms"] = "sse-s3"
    kms_key: str = ""


class Network(_Table, frozen=True):
    """`[network]`: how requests must come.

    Attributes:
        require_tls: Whether plain HTTP is refused; only `versitygw` on a closed network may say no.
        vpc_endpoint: The one VPC endpoint that all but the deployer come through; default: any.
    """

    require_tls: bool = True
    vpc_endpoint: str = ""


class LifecycleSettings(_Table, frozen=True):
    """`[lifecycle]`: the only thing that the store may clear away by itself.

    Attributes:
        abort_multipart_days: Days until an unfinished multipart upload is aborted, 1 to 365.
    """

    abort_multipart_days: int = 7


class ObjectLock(_Table, frozen=True):
    """`[object_lock]`: a floor under everything, for each version of each object of the bucket.

    Attributes:
        mode: `GOVERNANCE` or `COMPLIANCE`.
        days: Days that a version cannot be deleted, by the gc neither.
    """

    mode: Literal["GOVERNANCE", "COMPLIANCE"]
    days: int


class Notifications(_Table, frozen=True):
    """`[notifications]`: hints of new manifests to the reconciler; it scans without them as well.

    Attributes:
        eventbridge: Whether events go to EventBridge.
        queue_arn: The SQS queue that events go to; default: none.
    """

    eventbridge: bool = False
    queue_arn: str = ""


class RawBlobs(_Table, frozen=True):
    """`[raw_blobs]`: one optional rule, which costs something (`docs/policies.md`).

    Attributes:
        require_if_none_match: Whether a blob may be created and never written again.
    """

    require_if_none_match: bool = False


class Role(_Table, frozen=True):
    """`[roles.<name>]`: who plays the part.

    Attributes:
        arn: The IAM role, in the account of the bucket.
        user: The access key name on `versitygw`; default `sluice-<name>`.
        profile: The AWS profile that `verify` takes this role's credentials from; default: none,
            and the role's probes are told as not tried.
    """

    arn: str
    user: str = ""
    profile: str = ""


class Roles(_Table, frozen=True):
    """`[roles]`: all seven, each its own principal."""

    gateway: Role
    reconciler: Role
    spark: Role
    gc: Role
    auditor: Role
    operator: Role
    deployer: Role


class Settings(_Table, frozen=True):
    """The whole file; `version = 1` comes first."""

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
        """Gives who plays a part."""
        found: Role = getattr(self.roles, name.value)
        return found

    def user(self, name: RoleName) -> str:
        """Gives the access key name of a part on `versitygw`."""
        return self.role(name).user or f"sluice-{name.value}"

    def principal_of(self, name: RoleName, target: Target) -> str:
        """Gives how a target names who plays a part."""
        return self.role(name).arn if target is Target.AWS else self.user(name)


def bucket_arn(settings: Settings) -> str:
    """Gives the ARN of the bucket."""
    return f"arn:{settings.bucket.partition}:s3:::{settings.bucket.name}"


def objects_arn(settings: Settings, prefix: str = "") -> str:
    """Gives the pattern of every object under a prefix of the deployment."""
    return f"{bucket_arn(settings)}/{settings.bucket.prefix}{prefix}*"


def object_arn(settings: Settings, key: str) -> str:
    """Gives the ARN of one object, its key relative to the deployment."""
    return f"{bucket_arn(settings)}/{settings.bucket.prefix}{key}"


def objects_arns(settings: Settings, prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Gives the pattern of each prefix."""
    return tuple(objects_arn(settings, prefix) for prefix in prefixes)
