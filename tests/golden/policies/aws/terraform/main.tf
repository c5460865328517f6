# Rendered by `sluice policies render`; change the settings, not this file.
# The policy documents beside it are the very ones that `sluice policies prove` proved.
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

  # Nothing expires: only what was never finished is cleared away.
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

# Read: what this role reads
# Write: what this role writes
# Delete: what this role clears away itself
# List: without it a missing key reads as 403 and not 404; a read of a missing key carries no prefix, hence IfExists, at the price that key names can be listed without one
# Look: where the bucket is and whether it keeps versions
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "gateway" {
  name   = "sluice-gateway"
  role   = "gateway"
  policy = file("${path.module}/role-gateway.json")
}

# Read: what this role reads
# Write: what this role writes
# Delete: what this role clears away itself
# DeleteVersions: an exact version that was proved unused, never the key
# List: without it a missing key reads as 403 and not 404; a read of a missing key carries no prefix, hence IfExists, at the price that key names can be listed without one
# Look: where the bucket is and whether it keeps versions
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "reconciler" {
  name   = "sluice-reconciler"
  role   = "reconciler"
  policy = file("${path.module}/role-reconciler.json")
}

# Read: what this role reads
# Write: what this role writes
# Multipart: large files of the lake are uploaded in parts
# Delete: what this role clears away itself
# List: without it a missing key reads as 403 and not 404; a read of a missing key carries no prefix, hence IfExists, at the price that key names can be listed without one
# Look: where the bucket is and whether it keeps versions
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "spark" {
  name   = "sluice-spark"
  role   = "spark"
  policy = file("${path.module}/role-spark.json")
}

# Read: what this role reads
# Write: what this role writes
# Delete: what this role clears away itself
# DeleteVersions: an exact version that was proved unused, never the key
# List: without it a missing key reads as 403 and not 404; a read of a missing key carries no prefix, hence IfExists, at the price that key names can be listed without one
# Look: where the bucket is and whether it keeps versions
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "gc" {
  name   = "sluice-gc"
  role   = "gc"
  policy = file("${path.module}/role-gc.json")
}

# Read: what this role reads
# List: without it a missing key reads as 403 and not 404; a read of a missing key carries no prefix, hence IfExists, at the price that key names can be listed without one
# Look: where the bucket is and whether it keeps versions
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "auditor" {
  name   = "sluice-auditor"
  role   = "auditor"
  policy = file("${path.module}/role-auditor.json")
}

# Read: what this role reads
# Write: what this role writes
# Delete: what this role clears away itself
# List: without it a missing key reads as 403 and not 404; a read of a missing key carries no prefix, hence IfExists, at the price that key names can be listed without one
# Look: where the bucket is and whether it keeps versions
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "operator" {
  name   = "sluice-operator"
  role   = "operator"
  policy = file("${path.module}/role-operator.json")
}

# Read: what this role reads
# Write: what this role writes
# Delete: what this role clears away itself
# List: without it a missing key reads as 403 and not 404; a read of a missing key carries no prefix, hence IfExists, at the price that key names can be listed without one
# Look: where the bucket is and whether it keeps versions
# Configure: the deployer sets up the bucket
# UseKey: objects are encrypted under this key
resource "aws_iam_role_policy" "deployer" {
  name   = "sluice-deployer"
  role   = "deployer"
  policy = file("${path.module}/role-deployer.json")
}

# TlsOnly: a request in the clear shows every byte and can be changed on its way
# EndpointOnly: stolen credentials are of no use outside the network; the deployer is left out, since a wrong endpoint id would lock everybody out
# CreateOnly: one identity, one decision: a record that could be written twice would let two sets of bytes be accepted under one identity; a missing header matches too
# NoCopyInto: a copy brings bytes that no gateway validated, and its conditional header is not obeyed
# NoMultipartInto: blobs and manifests are single puts with a checksum over all their bytes; parts copied in would get past the rule on copies
# NeverHiddenOrReplaced: a delete marker reopens an identity, a replica overwrites it, an ACL gives it away
# NeverDeleted: decisions and evidence are for ever: a deleted manifest lets an identity be taken again, a deleted reference lets GC take a blob that is in use
# BlobVersionsByGcAlone: only the gc proves that nothing names a blob before it deletes that version
# NoLocksByHand: a bypass would make the lock a suggestion, a hold or a long retention would stop GC for ever; the bucket's own retention needs none of these rights
# NoOtherEncryption: the bucket's default encrypts what names no encryption; what names another would escape it (the header must be present: a missing one takes the default)
# NoCustomerKeys: an object under a key that only its writer has is lost with the writer
# NoOtherKey: an object under another key is lost when that key goes
# WritersOfGateway: only gateway writes here, whatever else an administrator of the account is allowed
# WritersOfGatewayAndReconcilerAndOperator: only gateway, reconciler, operator writes here, whatever else an administrator of the account is allowed
# WritersOfOperator: only operator writes here, whatever else an administrator of the account is allowed
# WritersOfGatewayAndDeployer: only gateway, deployer writes here, whatever else an administrator of the account is allowed
# WritersOfReconcilerAndGc: only reconciler, gc writes here, whatever else an administrator of the account is allowed
# WritersOfGatewayAndReconcilerAndGc: only gateway, reconciler, gc writes here, whatever else an administrator of the account is allowed
# WritersOfGc: only gc writes here, whatever else an administrator of the account is allowed
# WritersOfGatewayAndGc: only gateway, gc writes here, whatever else an administrator of the account is allowed
# WritersOfReconcilerAndSpark: only reconciler, spark writes here, whatever else an administrator of the account is allowed
# WritersOfReconciler: only reconciler writes here, whatever else an administrator of the account is allowed
# ReconfiguredByDeployerAlone: whoever may change policy, lifecycle, versioning, replication or lock may undo every rule here; a lifecycle deletes without being asked by any policy
# Last: it denies, and roles must have their rights before.
resource "aws_s3_bucket_policy" "sluice" {
  bucket     = aws_s3_bucket.sluice.id
  policy     = file("${path.module}/bucket-policy.json")
  depends_on = [aws_iam_role_policy.gateway, aws_iam_role_policy.reconciler, aws_iam_role_policy.spark, aws_iam_role_policy.gc, aws_iam_role_policy.auditor, aws_iam_role_policy.operator, aws_iam_role_policy.deployer]
}
