# Who may send to the queue of bucket events. This module has no provider, so its tests run everywhere: `tofu test`.
variable "queue_arn" {
  description = "The queue. Its partition is that of the bucket: `aws`, `aws-cn` or `aws-us-gov`."
  type        = string

  validation {
    condition     = can(regex("^arn:aws(-cn|-us-gov)?:sqs:[a-z0-9-]+:[0-9]{12}:.+", var.queue_arn))
    error_message = "The ARN of a queue looks like arn:aws:sqs:eu-central-1:111122223333:sluice-accepted."
  }
}

variable "bucket" {
  description = "The name of the bucket whose events are sent."
  type        = string
}

variable "account" {
  description = "The account that owns the bucket."
  type        = string
}

locals {
  partition = split(":", var.queue_arn)[1]
}

output "policy" {
  description = "The policy of the queue, as JSON."
  value = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "s3.amazonaws.com" }
      Action    = "sqs:SendMessage"
      Resource  = var.queue_arn
      Condition = {
        ArnEquals    = { "aws:SourceArn" = "arn:${local.partition}:s3:::${var.bucket}" }
        StringEquals = { "aws:SourceAccount" = var.account }
      }
    }]
  })
}
