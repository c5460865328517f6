"""A CloudFormation template in YAML with the documents inline and their reasons as comments.

The documents are written as JSON, which is valid YAML, so that their text is identical.
"""

from collections.abc import Iterator

from sluice_policies.configuration import ConfigurationPart, expiry_name, storage_class
from sluice_policies.model import Document, Json, compact_json, document_json
from sluice_policies.policy_set import PolicySet
from sluice_policies.settings import BlobClass, RoleName, Settings
from sluice_protocol import keys
from sluice_protocol.blob_deletion import EXPIRING


def _indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" if line else "\n" for line in text.splitlines())


def _reasons(document: Document) -> Iterator[str]:
    for statement in document.statements:
        yield f"# {statement.sid}: {statement.reason}"


def _notification(settings: Settings) -> Json:
    found: dict[str, Json] = {}
    if settings.notifications.eventbridge:
        found["EventBridgeConfiguration"] = {"EventBridgeEnabled": True}
    if settings.notifications.queue_arn:
        prefix: Json = {"Name": "prefix", "Value": f"{settings.bucket.prefix}accepted/v1/"}
        found["QueueConfigurations"] = [
            {
                "Event": "s3:ObjectCreated:*",
                "Queue": settings.notifications.queue_arn,
                "Filter": {"S3Key": {"Rules": [prefix]}},
            }
        ]
    return found


def _lifecycle_rules(settings: Settings) -> Iterator[Json]:
    place, wanted = settings.bucket.prefix, settings.lifecycle
    yield {
        "Id": "abort-incomplete-multipart-uploads",
        "Status": "Enabled",
        "Prefix": place,
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": wanted.abort_multipart_days},
    }
    for prefix in EXPIRING:
        yield {
            "Id": expiry_name(prefix),
            "Status": "Enabled",
            "Prefix": f"{place}{prefix}",
            "NoncurrentVersionExpiration": {"NoncurrentDays": wanted.noncurrent_days},
            "ExpiredObjectDeleteMarker": True,
        }
    if wanted.blob_class is not BlobClass.STANDARD:
        move: Json = {
            "StorageClass": storage_class(settings),
            "TransitionInDays": wanted.blob_class_days,
        }
        yield {
            "Id": "move-old-blobs",
            "Status": "Enabled",
            "Prefix": f"{place}{keys.RAW_BLOBS}",
            "Transitions": [move],
        }


def _properties(settings: Settings) -> Json:
    kms = settings.encryption.mode == "sse-kms"
    default: dict[str, Json] = {"SSEAlgorithm": "aws:kms" if kms else "AES256"}
    if kms:
        default["KMSMasterKeyID"] = settings.encryption.kms_key
    encryption: Json = [{"ServerSideEncryptionByDefault": default, "BucketKeyEnabled": kms}]
    found: dict[str, Json] = {
        "BucketName": settings.bucket.name,
        "VersioningConfiguration": {"Status": "Enabled"},
        "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
        "PublicAccessBlockConfiguration": {
            "BlockPublicAcls": True,
            "BlockPublicPolicy": True,
            "IgnorePublicAcls": True,
            "RestrictPublicBuckets": True,
        },
        "BucketEncryption": {"ServerSideEncryptionConfiguration": encryption},
        "LifecycleConfiguration": {"Rules": list(_lifecycle_rules(settings))},
    }
    notification = _notification(settings)
    if notification:
        found["NotificationConfiguration"] = notification
    lock = settings.object_lock
    if lock is not None:
        retention: Json = {"Mode": lock.mode, "Days": lock.days}
        found["ObjectLockEnabled"] = True
        found["ObjectLockConfiguration"] = {
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": retention},
        }
    return found


def _bucket(settings: Settings) -> str:
    return (
        "Bucket:\n"
        "  Type: AWS::S3::Bucket\n"
        "  DeletionPolicy: Retain\n"
        "  UpdateReplacePolicy: Retain\n"
        f"  Properties: {compact_json(_properties(settings))}\n"
    )


def _statements(document: Document) -> str:
    return compact_json(document_json(document))


def _role_policy(policies: PolicySet, name: RoleName) -> str:
    document = policies.identities[name]
    role = policies.settings.role(name).arn.rpartition("/")[2]
    comments = "".join(f"{line}\n" for line in _reasons(document))
    return (
        comments + f"{name.value.title()}Policy:\n"
        "  Type: AWS::IAM::Policy\n"
        "  Properties:\n"
        f"    PolicyName: sluice-{name.value}\n"
        f"    Roles: [{compact_json(role)}]\n"
        f"    PolicyDocument: {_statements(document)}\n"
    )


def _bucket_policy(policies: PolicySet) -> str:
    comments = "".join(f"{line}\n" for line in _reasons(policies.bucket))
    waits = ", ".join(f"{name.value.title()}Policy" for name in policies.identities)
    return (
        comments + "# Last, because it denies: the roles must have their rights first.\n"
        "BucketPolicy:\n"
        "  Type: AWS::S3::BucketPolicy\n"
        f"  DependsOn: [{waits}]\n"
        "  Properties:\n"
        "    Bucket: {Ref: Bucket}\n"
        f"    PolicyDocument: {_statements(policies.bucket)}\n"
    )


def cloudformation_template(policies: PolicySet, parts: dict[ConfigurationPart, Json]) -> str:
    """Return the template; its description lists `parts` of the configuration."""
    resources = (
        _bucket(policies.settings),
        *(_role_policy(policies, name) for name in policies.identities),
        _bucket_policy(policies),
    )
    about = compact_json(f"sluice: bucket, {', '.join(part.value for part in parts)}, and policies")
    return (
        "# Rendered by `sluice policies render`; change the settings, not this file.\n"
        'AWSTemplateFormatVersion: "2010-09-09"\n'
        f"Description: {about}\n"
        "Resources:\n" + "\n".join(_indented(resource, 2) for resource in resources)
    )
