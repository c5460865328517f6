"""A Terraform module that reads the documents from files; reasons are comments."""

from collections.abc import Iterator

from sluice_policies.configuration import ConfigurationPart, expiry_name, storage_class
from sluice_policies.model import Document, Json, compact_json
from sluice_policies.policy_set import PolicySet
from sluice_policies.settings import BlobClass, RoleName
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


def _reasons(document: Document) -> str:
    return "".join(f"# {s.sid}: {s.reason}\n" for s in document.statements)


def _resource(kind: str, *lines: str) -> str:
    body = "".join(f"  {line}\n" if line else "\n" for line in lines)
    return f'resource "{kind}" "sluice" {{\n{body}}}\n'


def _bucket(policies: PolicySet) -> Iterator[str]:
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


def _notification(policies: PolicySet) -> Iterator[str]:
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
        *_bucket(policies),
        *_lock(policies),
        _encryption(policies),
        _clearing(policies),
        *_notification(policies),
        *(_identity(policies, name) for name in policies.identities),
        _policy(policies, parts),
    )
    return "\n".join(pieces)
