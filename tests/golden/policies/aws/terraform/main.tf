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

resource "aws_s3_bucket" "sluice" {
  bucket = "example-sluice"

  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_s3_bucket_versioning" "sluice" {
  bucket = aws_s3_bucket.sluice.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_ownership_controls" "sluice" {
  bucket = aws_s3_bucket.sluice.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_public_access_block" "sluice" {
  bucket                  = aws_s3_bucket.sluice.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "sluice" {
  bucket = aws_s3_bucket.sluice.id

  rule {
    bucket_key_enabled = true
    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = "arn:aws:kms:eu-central-1:111122223333:key/0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
    }
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "sluice" {
  bucket = aws_s3_bucket.sluice.id

  # No current object and no accepted byte expires: only unfinished uploads, and superseded
  # versions and delete markers of derived data and state.
  rule {
    id     = "abort-incomplete-multipart-uploads"
    status = "Enabled"
    filter {
      prefix = "prod/"
    }
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }
  rule {
    id     = "expire-noncurrent-gateways"
    status = "Enabled"
    filter {
      prefix = "prod/gateways/v1/"
    }
    noncurrent_version_expiration {
      noncurrent_days = 3
    }
    expiration {
      expired_object_delete_marker = true
    }
  }
  rule {
    id     = "expire-noncurrent-index"
    status = "Enabled"
    filter {
      prefix = "prod/index/v1/"
    }
    noncurrent_version_expiration {
      noncurrent_days = 3
    }
    expiration {
      expired_object_delete_marker = true
    }
  }
  rule {
    id     = "expire-noncurrent-lake"
    status = "Enabled"
    filter {
      prefix = "prod/lake/v1/"
    }
    noncurrent_version_expiration {
      noncurrent_days = 3
    }
    expiration {
      expired_object_delete_marker = true
    }
  }
  rule {
    id     = "expire-noncurrent-maintain"
    status = "Enabled"
    filter {
      prefix = "prod/maintain/v1/"
    }
    noncurrent_version_expiration {
      noncurrent_days = 3
    }
    expiration {
      expired_object_delete_marker = true
    }
  }
  rule {
    id     = "expire-noncurrent-manifests"
    status = "Enabled"
    filter {
      prefix = "prod/manifests/v1/"
    }
    noncurrent_version_expiration {
      noncurrent_days = 3
    }
    expiration {
      expired_object_delete_marker = true
    }
  }
  rule {
    id     = "expire-noncurrent-queue"
    status = "Enabled"
    filter {
      prefix = "prod/queue/v1/"
    }
    noncurrent_version_expiration {
      noncurrent_days = 3
    }
    expiration {
      expired_object_delete_marker = true
    }
  }
  rule {
    id     = "expire-noncurrent-reconciler"
    status = "Enabled"
    filter {
      prefix = "prod/reconciler/v1/"
    }
    noncurrent_version_expiration {
      noncurrent_days = 3
    }
    expiration {
      expired_object_delete_marker = true
    }
  }
  rule {
    id     = "expire-noncurrent-rollup"
    status = "Enabled"
    filter {
      prefix = "prod/rollup/v1/"
    }
    noncurrent_version_expiration {
      noncurrent_days = 3
    }
    expiration {
      expired_object_delete_marker = true
    }
  }
}

resource "aws_s3_bucket_notification" "sluice" {
  bucket      = aws_s3_bucket.sluice.id
  eventbridge = false

  queue {
    id            = "sluice-accepted"
    queue_arn     = "arn:aws:sqs:eu-central-1:111122223333:sluice-accepted"
    events        = ["s3:ObjectCreated:*"]
    filter_prefix = "prod/accepted/v1/"
  }
}

# Read: the objects that this role reads
# Write: the objects that this role writes
# Delete: the objects that this role deletes itself
# List: without it a missing key returns 403 and not 404; a read of a missing key sends no prefix, hence IfExists; as a consequence, key names can be listed without a prefix
# Look: the region of the bucket and its versioning state
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "gateway" {
  name   = "sluice-gateway"
  role   = "gateway"
  policy = file("${path.module}/role-gateway.json")
}

# Read: the objects that this role reads
# Write: the objects that this role writes
# Delete: the objects that this role deletes itself
# DeleteVersions: one exact version that was proved unused, never the whole key
# List: without it a missing key returns 403 and not 404; a read of a missing key sends no prefix, hence IfExists; as a consequence, key names can be listed without a prefix
# Look: the region of the bucket and its versioning state
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "reconciler" {
  name   = "sluice-reconciler"
  role   = "reconciler"
  policy = file("${path.module}/role-reconciler.json")
}

# Read: the objects that this role reads
# Write: the objects that this role writes
# Multipart: large files of the lake are uploaded in parts
# Delete: the objects that this role deletes itself
# DeleteVersions: one exact version that was proved unused, never the whole key
# List: without it a missing key returns 403 and not 404; a read of a missing key sends no prefix, hence IfExists; as a consequence, key names can be listed without a prefix
# Look: the region of the bucket and its versioning state
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "spark" {
  name   = "sluice-spark"
  role   = "spark"
  policy = file("${path.module}/role-spark.json")
}

# Read: the objects that this role reads
# Write: the objects that this role writes
# Multipart: large files of the lake are uploaded in parts
# Delete: the objects that this role deletes itself
# DeleteVersions: one exact version that was proved unused, never the whole key
# List: without it a missing key returns 403 and not 404; a read of a missing key sends no prefix, hence IfExists; as a consequence, key names can be listed without a prefix
# Look: the region of the bucket and its versioning state
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "maintainer" {
  name   = "sluice-maintainer"
  role   = "maintainer"
  policy = file("${path.module}/role-maintainer.json")
}

# Read: the objects that this role reads
# Write: the objects that this role writes
# Delete: the objects that this role deletes itself
# List: without it a missing key returns 403 and not 404; a read of a missing key sends no prefix, hence IfExists; as a consequence, key names can be listed without a prefix
# Look: the region of the bucket and its versioning state
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "certifier" {
  name   = "sluice-certifier"
  role   = "certifier"
  policy = file("${path.module}/role-certifier.json")
}

# Read: the objects that this role reads
# Write: the objects that this role writes
# Delete: the objects that this role deletes itself
# DeleteVersions: one exact version that was proved unused, never the whole key
# List: without it a missing key returns 403 and not 404; a read of a missing key sends no prefix, hence IfExists; as a consequence, key names can be listed without a prefix
# Look: the region of the bucket and its versioning state
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "gc" {
  name   = "sluice-gc"
  role   = "gc"
  policy = file("${path.module}/role-gc.json")
}

# Read: the objects that this role reads
# List: without it a missing key returns 403 and not 404; a read of a missing key sends no prefix, hence IfExists; as a consequence, key names can be listed without a prefix
# Look: the region of the bucket and its versioning state
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "auditor" {
  name   = "sluice-auditor"
  role   = "auditor"
  policy = file("${path.module}/role-auditor.json")
}

# Read: the objects that this role reads
# Write: the objects that this role writes
# Delete: the objects that this role deletes itself
# List: without it a missing key returns 403 and not 404; a read of a missing key sends no prefix, hence IfExists; as a consequence, key names can be listed without a prefix
# Look: the region of the bucket and its versioning state
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "operator" {
  name   = "sluice-operator"
  role   = "operator"
  policy = file("${path.module}/role-operator.json")
}

# Read: the objects that this role reads
# Write: the objects that this role writes
# List: without it a missing key returns 403 and not 404; a read of a missing key sends no prefix, hence IfExists; as a consequence, key names can be listed without a prefix
# Look: the region of the bucket and its versioning state
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "console" {
  name   = "sluice-console"
  role   = "console"
  policy = file("${path.module}/role-console.json")
}

# Read: the objects that this role reads
# Write: the objects that this role writes
# Delete: the objects that this role deletes itself
# List: without it a missing key returns 403 and not 404; a read of a missing key sends no prefix, hence IfExists; as a consequence, key names can be listed without a prefix
# Look: the region of the bucket and its versioning state
# Configure: the deployer configures the bucket
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "deployer" {
  name   = "sluice-deployer"
  role   = "deployer"
  policy = file("${path.module}/role-deployer.json")
}

# TlsOnly: an unencrypted request exposes its content and can be modified in transit
# EndpointOnly: stolen credentials are useless outside the network; the deployer is exempt, because a wrong endpoint id would lock out every role
# OwnAccountOnly: every role is in the account of the bucket: a statement that grants access to another account or to everyone is a mistake; an anonymous request has no aws:PrincipalIsAWSService, hence IfExists
# ServicesOfOwnAccountOnly: an AWS service can be made to act for another account (confused deputy); it names the account for which it acts in aws:SourceAccount
# CreateOnly: one identity has one decision: a record that could be written twice would allow two different batches to be accepted under one identity; a request without the header is denied too
# CreateOnlyJournals: a journal object that could be written twice, with fewer entries or a later time, would let an answer claim to contain batches that are missing
# NoCopyInto: a copy stores bytes that no gateway validated, and not every server honours the conditional header of a copy
# NoMultipartInto: blobs and records are single puts with a checksum of all their bytes; copied parts would bypass the rule on copies
# NeverHiddenOrReplaced: a delete marker makes an identity available again, a replicated tag or owner changes the object, an ACL exposes it
# NeverDeleted: decisions and evidence are permanent: deleting a manifest makes its identity available again
# ReferencesByReconcilerAlone: the reference of an expired batch ends after its blob; the role that deletes blobs cannot remove a reference that keeps one
# BlobVersionsByGcAlone: only the gc role proves that no manifest names a blob before it deletes that version
# JournalsDeletedByReconcilerAlone: without its registration or journal, a gateway process no longer holds back the time through which answers are complete
# NoLocksByHand: a bypass would make the lock ineffective, and a legal hold or a long retention would block GC permanently; the bucket's own retention needs none of these rights
# NoOtherEncryption: the bucket's default encrypts objects that name no encryption; another encryption would bypass it (only a header that is present is denied: without one the default applies)
# NoCustomerKeys: an object under a key that only its writer has is lost with the writer
# NoOtherKey: an object under another key is lost when that key is deleted
# NoUnnamedKey: S3 encrypts a request that names aws:kms and no key with the AWS managed key aws/s3, not with the key of the bucket's default
# NeverReencrypted: a replica keeps the encryption of its source, and an update of the encryption chooses another key; both also replace the object
# WritersOfGateway: only gateway may write here, whatever else an administrator of the account is allowed to do
# WritersOfGatewayAndReconcilerAndOperatorAndConsole: only gateway, reconciler, operator, console may write here, whatever else an administrator of the account is allowed to do
# WritersOfMaintainerAndOperator: only maintainer, operator may write here, whatever else an administrator of the account is allowed to do
# WritersOfGatewayAndReconcilerAndDeployer: only gateway, reconciler, deployer may write here, whatever else an administrator of the account is allowed to do
# WritersOfOperator: only operator may write here, whatever else an administrator of the account is allowed to do
# WritersOfOperatorAndConsole: only operator, console may write here, whatever else an administrator of the account is allowed to do
# WritersOfCertifier: only certifier may write here, whatever else an administrator of the account is allowed to do
# WritersOfGatewayAndReconcilerAndCertifier: only gateway, reconciler, certifier may write here, whatever else an administrator of the account is allowed to do
# WritersOfReconcilerAndCertifier: only reconciler, certifier may write here, whatever else an administrator of the account is allowed to do
# WritersOfGatewayAndGc: only gateway, gc may write here, whatever else an administrator of the account is allowed to do
# WritersOfCertifierAndGcAndOperatorAndConsole: only certifier, gc, operator, console may write here, whatever else an administrator of the account is allowed to do
# WritersOfGc: only gc may write here, whatever else an administrator of the account is allowed to do
# WritersOfReconcilerAndSparkAndMaintainer: only reconciler, spark, maintainer may write here, whatever else an administrator of the account is allowed to do
# ReconfiguredByDeployerAlone: a principal that can change policy, lifecycle, versioning, replication or lock can disable every rule here; a lifecycle deletes objects without any policy check
# Last, because it denies: the roles must have their rights first.
resource "aws_s3_bucket_policy" "sluice" {
  bucket     = aws_s3_bucket.sluice.id
  policy     = file("${path.module}/bucket-policy.json")
  depends_on = [aws_iam_role_policy.gateway, aws_iam_role_policy.reconciler, aws_iam_role_policy.spark, aws_iam_role_policy.maintainer, aws_iam_role_policy.certifier, aws_iam_role_policy.gc, aws_iam_role_policy.auditor, aws_iam_role_policy.operator, aws_iam_role_policy.console, aws_iam_role_policy.deployer]
}
