variables {
  queue_arn = "arn:aws:sqs:eu-central-1:111122223333:sluice-accepted"
  bucket    = "example-sluice"
  account   = "111122223333"
}

run "only_events_of_the_bucket_are_accepted" {
  command = apply

  assert {
    condition = jsondecode(output.policy).Statement == [{
      Effect    = "Allow"
      Principal = { Service = "s3.amazonaws.com" }
      Action    = "sqs:SendMessage"
      Resource  = "arn:aws:sqs:eu-central-1:111122223333:sluice-accepted"
      Condition = {
        ArnEquals    = { "aws:SourceArn" = "arn:aws:s3:::example-sluice" }
        StringEquals = { "aws:SourceAccount" = "111122223333" }
      }
    }]
    error_message = "The policy allows exactly one sender."
  }
}

run "a_bucket_in_china" {
  command = apply

  variables {
    queue_arn = "arn:aws-cn:sqs:cn-north-1:111122223333:sluice-accepted"
  }

  assert {
    condition = (
      jsondecode(output.policy).Statement[0].Condition.ArnEquals["aws:SourceArn"] == "arn:aws-cn:s3:::example-sluice"
    )
    error_message = "The bucket has the partition of the queue."
  }
}

run "a_bucket_in_govcloud" {
  command = apply

  variables {
    queue_arn = "arn:aws-us-gov:sqs:us-gov-west-1:111122223333:sluice-accepted"
  }

  assert {
    condition = (
      jsondecode(output.policy).Statement[0].Condition.ArnEquals["aws:SourceArn"] == "arn:aws-us-gov:s3:::example-sluice"
    )
    error_message = "The bucket has the partition of the queue."
  }
}

run "another_arn_is_refused" {
  command = plan

  variables {
    queue_arn = "arn:aws:sns:eu-central-1:111122223333:sluice-accepted"
  }

  expect_failures = [var.queue_arn]
}
