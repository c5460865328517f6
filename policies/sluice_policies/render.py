"""Everything that is rendered for a target: the documents, and templates that contain them.

CloudFormation's template has the documents inline, with their reasons as comments. They are written
as JSON, which is valid YAML, so that their text is identical. The Terraform module reads them from
files.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sluice_policies.configuration import (
    ConfigurationPart,
    configuration,
    expiry_name,
    storage_class,
)
from sluice_policies.errors import TargetCannot
from sluice_policies.model import (
    BUCKET_POLICY_BYTES_MAX,
    IDENTITY_POLICY_BYTES_MAX,
    Document,
    Json,
    canonical_json,
    compact_json,
    document_json,
)
from sluice_policies.policy_set import PolicySet, inexpressible_statements, policy_set
from sluice_policies.required_properties import inexpressible_properties
from sluice_policies.settings import BlobClass, RoleName, Settings, Target
from sluice_protocol import keys
from sluice_protocol.blob_deletion import EXPIRING

_HEAD = """\
# Rendered by `sluice policies render`; change the settings, not this file.
# The policy documents in this folder are those that `sluice policies prove` proves.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.60"
    }
  }
}
"""


def _quoted(text: str) -> str:
    return compact_json(text)


def _resource(kind: str, *lines: str) -> str:
    body = "".join(f"  {line}\n" if line else "\n" for line in lines)
    return f'resource "{kind}" "sluice" {{\n{body}}}\n'


def _bucket_resources(policies: PolicySet) -> Iterator[str]:
    name = _quoted(policies.settings.bucket.name)
    lock = policies.settings.object_lock is not None
    more = ("object_lock_enabled = true",) if lock else ()
    keep = ("", "lifecycle {", "  prevent_destroy = true", "}")
    yield _resource("aws_s3_bucket", f"bucket = {name}", *more, *keep)
    yield _resource(
        "aws_s3_bucket_versioning",
        "bucket = aws_s3_bucket.sluice.id",
        "",
        "versioning_configuration {",
        '  status = "Enabled"',
        "}",
    )
    yield _resource(
        "aws_s3_bucket_ownership_controls",
        "bucket = aws_s3_bucket.sluice.id",
        "",
        "rule {",
        '  object_ownership = "BucketOwnerEnforced"',
        "}",
    )
    yield _resource(
        "aws_s3_bucket_public_access_block",
        "bucket                  = aws_s3_bucket.sluice.id",
        "block_public_acls       = true",
        "block_public_policy     = true",
        "ignore_public_acls      = true",
        "restrict_public_buckets = true",
    )


def _encryption(policies: PolicySet) -> str:
    kms = policies.settings.encryption.mode == "sse-kms"
    # Aligned as `terraform fmt` aligns them.
    chosen = (
        '    sse_algorithm     = "aws:kms"',
        f"    kms_master_key_id = {_quoted(policies.settings.encryption.kms_key)}",
    )
    return _resource(
        "aws_s3_bucket_server_side_encryption_configuration",
        "bucket = aws_s3_bucket.sluice.id",
        "",
        "rule {",
        f"  bucket_key_enabled = {'true' if kms else 'false'}",
        "  apply_server_side_encryption_by_default {",
        *(chosen if kms else ('    sse_algorithm = "AES256"',)),
        "  }",
        "}",
    )


def _rule(name: str, prefix: str, *action: str) -> tuple[str, ...]:
    return (
        "rule {",
        f'  id     = "{name}"',
        '  status = "Enabled"',
        "  filter {",
        f"    prefix = {_quoted(prefix)}",
        "  }",
        *(f"  {line}" for line in action),
        "}",
    )


def _expiry(place: str, prefix: str, days: int) -> tuple[str, ...]:
    return _rule(
        expiry_name(prefix),
        f"{place}{prefix}",
        "noncurrent_version_expiration {",
        f"  noncurrent_days = {days}",
        "}",
        "expiration {",
        "  expired_object_delete_marker = true",
        "}",
    )


def _clearing(policies: PolicySet) -> str:
    place, wanted = policies.settings.bucket.prefix, policies.settings.lifecycle
    move = _rule(
        "move-old-blobs",
        f"{place}{keys.RAW_BLOBS}",
        "transition {",
        f"  days          = {wanted.blob_class_days}",
        f'  storage_class = "{storage_class(policies.settings)}"',
        "}",
    )
    return _resource(
        "aws_s3_bucket_lifecycle_configuration",
        "bucket = aws_s3_bucket.sluice.id",
        "",
        "# No current object and no accepted byte expires: only unfinished uploads, and superseded",
        "# versions and delete markers of derived data and state.",
        *_rule(
            "abort-incomplete-multipart-uploads",
            place,
            "abort_incomplete_multipart_upload {",
            f"  days_after_initiation = {wanted.abort_multipart_days}",
            "}",
        ),
        *(line for one in EXPIRING for line in _expiry(place, one, wanted.noncurrent_days)),
        *(move if wanted.blob_class is not BlobClass.STANDARD else ()),
    )


def _lock(policies: PolicySet) -> Iterator[str]:
    lock = policies.settings.object_lock
    if lock is not None:
        yield _resource(
            "aws_s3_bucket_object_lock_configuration",
            "bucket = aws_s3_bucket.sluice.id",
            "",
            "rule {",
            "  default_retention {",
            f'    mode = "{lock.mode}"',
            f"    days = {lock.days}",
            "  }",
            "}",
        )


def _notification_resources(policies: PolicySet) -> Iterator[str]:
    found = policies.settings.notifications
    accepted = _quoted(f"{policies.settings.bucket.prefix}accepted/v1/")
    queue = (
        "",
        "queue {",
        '  id            = "sluice-accepted"',
        f"  queue_arn     = {_quoted(found.queue_arn)}",
        '  events        = ["s3:ObjectCreated:*"]',
        f"  filter_prefix = {accepted}",
        "}",
    )
    if found.queue_arn or found.eventbridge:
        yield _resource(
            "aws_s3_bucket_notification",
            "bucket      = aws_s3_bucket.sluice.id",
            f"eventbridge = {'true' if found.eventbridge else 'false'}",
            *(queue if found.queue_arn else ()),
        )


def _identity(policies: PolicySet, name: RoleName) -> str:
    role = policies.settings.role(name).arn.rpartition("/")[2]
    return (
        _reasons(policies.identities[name])
        + f'resource "aws_iam_role_policy" "{name.value}" {{\n'
        + f'  name   = "sluice-{name.value}"\n'
        + f"  role   = {_quoted(role)}\n"
        + f'  policy = file("${{path.module}}/role-{name.value}.json")\n'
        + "}\n"
    )


def _policy(policies: PolicySet, parts: dict[ConfigurationPart, Json]) -> str:
    roles = ", ".join(f"aws_iam_role_policy.{name.value}" for name in policies.identities)
    order = (
        "" if not parts else "# Last, because it denies: the roles must have their rights first.\n"
    )
    return (
        _reasons(policies.bucket)
        + order
        + _resource(
            "aws_s3_bucket_policy",
            "bucket     = aws_s3_bucket.sluice.id",
            'policy     = file("${path.module}/bucket-policy.json")',
            f"depends_on = [{roles}]",
        )
    )


def terraform_module(policies: PolicySet, parts: dict[ConfigurationPart, Json]) -> str:
    """Return `main.tf`; the documents that it reads are in the same folder."""
    pieces = (
        _HEAD,
        *_bucket_resources(policies),
        *_lock(policies),
        _encryption(policies),
        _clearing(policies),
        *_notification_resources(policies),
        *(_identity(policies, name) for name in policies.identities),
        _policy(policies, parts),
    )
    return "\n".join(pieces)


def _indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" if line else "\n" for line in text.splitlines())


def _reasons(document: Document) -> str:
    return "".join(f"# {s.sid}: {s.reason}\n" for s in document.statements)


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
    return (
        _reasons(document) + f"{name.value.title()}Policy:\n"
        "  Type: AWS::IAM::Policy\n"
        "  Properties:\n"
        f"    PolicyName: sluice-{name.value}\n"
        f"    Roles: [{compact_json(role)}]\n"
        f"    PolicyDocument: {_statements(document)}\n"
    )


def _bucket_policy(policies: PolicySet) -> str:
    waits = ", ".join(f"{name.value.title()}Policy" for name in policies.identities)
    return (
        _reasons(policies.bucket)
        + "# Last, because it denies: the roles must have their rights first.\n"
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


BUCKET_POLICY = "bucket-policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inexpressible:
    """Something that a target cannot express, and why, or which property is not enforced."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """The files for one target."""

    target: Target
    files: dict[str, str]
    inexpressible: tuple[Inexpressible, ...]


SUPPORTED_PARTS = {
    Target.AWS: frozenset(ConfigurationPart),
    Target.VERSITYGW: frozenset(
        {ConfigurationPart.VERSIONING, ConfigurationPart.OWNERSHIP, ConfigurationPart.OBJECT_LOCK}
    ),
}
"""The parts of a configuration that a target accepts; versitygw responds to the others with 501."""


def documents(policies: PolicySet) -> dict[str, Document]:
    """Return every policy document by its name in files and reports."""
    found = {BUCKET_POLICY: policies.bucket}
    for name, document in policies.identities.items():
        found[f"role-{name.value}"] = document
    return found


def document_texts(policies: PolicySet) -> dict[str, str]:
    """Return the canonical text of every policy document by name."""
    return {name: canonical_json(document_json(d)) for name, d in documents(policies).items()}


def supported_configuration(settings: Settings, target: Target) -> dict[ConfigurationPart, Json]:
    """Return the parts of the configuration that a target accepts, in a safe order."""
    parts = configuration(settings)
    return {part: value for part, value in parts.items() if part in SUPPORTED_PARTS[target]}


def inexpressible(policies: PolicySet) -> tuple[Inexpressible, ...]:
    """Return what a target cannot express, derived from the documents."""
    if policies.target is Target.AWS:
        return ()
    settings = policies.settings
    parts = [
        part for part in configuration(settings) if part not in SUPPORTED_PARTS[policies.target]
    ]
    return (
        *(
            Inexpressible(what=f"property {item.name}", why=f"not enforced: {item.description}")
            for item in inexpressible_properties(policies)
        ),
        *(
            Inexpressible(what=f"statement {s.sid}", why=why)
            for s, why in inexpressible_statements(settings)
        ),
        *(
            Inexpressible(what=f"configuration {part.value}", why="the server responds with 501")
            for part in parts
        ),
        Inexpressible(what="root and admin accounts", why="the server applies no policy to them"),
    )


def check_sizes(policies: PolicySet) -> None:
    """Refuse a document larger than the store accepts; shorter prefixes and role names help."""
    for name, document in documents(policies).items():
        bucket = name == BUCKET_POLICY
        limit = BUCKET_POLICY_BYTES_MAX if bucket else IDENTITY_POLICY_BYTES_MAX
        size = len(compact_json(document_json(document)).encode())
        if size > limit:
            text = f"size_bytes=`{size}`, limit_bytes=`{limit}`"
            raise TargetCannot(f"{name} is too large; shorten prefix and role names, {text}")


def reasons_json(policies: PolicySet) -> Json:
    """Return the reason of each statement by document, because JSON policies have no comments."""
    return {
        name: {statement.sid: statement.reason for statement in document.statements}
        for name, document in documents(policies).items()
    }


def render(settings: Settings) -> Rendering:
    """Render every file for the target of the settings."""
    target = settings.target
    policies = policy_set(settings, target)
    check_sizes(policies)
    parts = supported_configuration(settings, target)
    lost = inexpressible(policies)
    files = {f"{name}.json": text for name, text in document_texts(policies).items()}
    files |= {f"{part.value}.json": canonical_json(value) for part, value in parts.items()}
    files["reasons.json"] = canonical_json(reasons_json(policies))
    if target is Target.AWS:
        files["cloudformation.yaml"] = cloudformation_template(policies, parts)
        files["terraform/main.tf"] = terraform_module(policies, parts)
        for name in (f"{document}.json" for document in documents(policies)):
            files[f"terraform/{name}"] = files[name]
    else:
        files["cannot-express.json"] = canonical_json(
            [{"what": m.what, "why": m.why} for m in lost]
        )
    return Rendering(target=target, files=dict(sorted(files.items())), inexpressible=lost)
