# What a deployment on AWS needs outside of Kubernetes: the roles, the queue of bucket events, and the bucket with the
# policies that `sluice policies render` writes into ./policies. See docs/aws.md.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.60"
    }
  }
}

provider "aws" {
  region              = var.region
  allowed_account_ids = [var.account]
}

module "trust" {
  source = "./trust"

  oidc_provider_arn = var.oidc_provider_arn
  oidc_audience     = var.oidc_audience
  namespace         = var.namespace
  release           = var.release
  administrators    = var.administrators
}

resource "aws_iam_role" "sluice" {
  for_each = module.trust.policies

  name                 = "sluice-${each.key}"
  assume_role_policy   = each.value
  max_session_duration = 3600
}

# The reconciler finds new batches by these events. Without them it lists, which is slower.
resource "aws_sqs_queue" "accepted" {
  name                       = "sluice-accepted"
  visibility_timeout_seconds = 60
  message_retention_seconds  = 1209600
  sqs_managed_sse_enabled    = true
}

module "queue_policy" {
  source = "./queue-policy"

  queue_arn = aws_sqs_queue.accepted.arn
  bucket    = var.bucket
  account   = var.account
}

resource "aws_sqs_queue_policy" "accepted" {
  queue_url = aws_sqs_queue.accepted.id
  policy    = module.queue_policy.policy
}

resource "aws_iam_role_policy" "events" {
  name = "sluice-events"
  role = aws_iam_role.sluice["reconciler"].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility"]
      Resource = aws_sqs_queue.accepted.arn
    }]
  })
}

# The bucket, and the policies that `sluice policies prove` proves.
module "policies" {
  source = "./policies/terraform"

  depends_on = [aws_iam_role.sluice, aws_sqs_queue_policy.accepted]
}
