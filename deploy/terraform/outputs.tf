output "store" {
  description = "The store URL of every command."
  value       = "s3://${var.bucket}?region=${var.region}"
}

output "event_queue_url" {
  description = "The setting event_queue_url of the reconciler."
  value       = aws_sqs_queue.accepted.url
}

output "role_arns" {
  description = "The annotation eks.amazonaws.com/role-arn of each service account."
  value       = { for name, role in aws_iam_role.sluice : name => role.arn }
}
