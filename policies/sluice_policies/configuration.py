"""The bucket's configuration, except its policy, in the form of the S3 calls that set it."""

from enum import StrEnum

from sluice_policies.lifecycle import lifecycle_document
from sluice_policies.model import Json
from sluice_policies.settings import Settings
from sluice_protocol import keys


class ConfigurationPart(StrEnum):
    """One part of a bucket's configuration."""

    VERSIONING = "versioning"
    OBJECT_LOCK = "object-lock"
    OWNERSHIP = "ownership"
    PUBLIC_ACCESS = "public-access-block"
    ENCRYPTION = "encryption"
    LIFECYCLE = "lifecycle"
    NOTIFICATION = "notification"


def _encryption(settings: Settings) -> Json:
    kms = settings.encryption.mode == "sse-kms"
    default: dict[str, Json] = {"SSEAlgorithm": "aws:kms" if kms else "AES256"}
    if kms:
        default["KMSMasterKeyID"] = settings.encryption.kms_key
    return {"Rules": [{"ApplyServerSideEncryptionByDefault": default, "BucketKeyEnabled": kms}]}


def _notification(settings: Settings) -> Json:
    found: dict[str, Json] = {}
    if settings.notifications.eventbridge:
        found["EventBridgeConfiguration"] = {}
    if settings.notifications.queue_arn:
        accepted = f"{settings.bucket.prefix}{keys.ACCEPTED}"
        found["QueueConfigurations"] = [
            {
                "Id": "sluice-accepted",
                "QueueArn": settings.notifications.queue_arn,
                "Events": ["s3:ObjectCreated:*"],
                "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": accepted}]}},
            }
        ]
    return found


def _object_lock(settings: Settings) -> Json:
    lock = settings.object_lock
    if lock is None:
        return None
    retention: Json = {"Mode": lock.mode, "Days": lock.days}
    return {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": retention}}


def configuration(settings: Settings) -> dict[ConfigurationPart, Json]:
    """Return every part to set, in a safe order.

    Versioning comes first, so that no later change can lose the only copy of an object. Object Lock
    is omitted unless it is configured.
    """
    parts: dict[ConfigurationPart, Json] = {
        ConfigurationPart.VERSIONING: {"Status": "Enabled"},
        ConfigurationPart.OBJECT_LOCK: _object_lock(settings),
        ConfigurationPart.OWNERSHIP: {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
        ConfigurationPart.PUBLIC_ACCESS: {
            "BlockPublicAcls": True,
            "BlockPublicPolicy": True,
            "IgnorePublicAcls": True,
            "RestrictPublicBuckets": True,
        },
        ConfigurationPart.ENCRYPTION: _encryption(settings),
        ConfigurationPart.LIFECYCLE: lifecycle_document(settings),
        ConfigurationPart.NOTIFICATION: _notification(settings),
    }
    return {part: value for part, value in parts.items() if value is not None}
