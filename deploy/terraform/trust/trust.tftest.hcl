variables {
  oidc_provider_arn = "arn:aws:iam::111122223333:oidc-provider/oidc.eks.eu-central-1.amazonaws.com/id/ABC"
  namespace         = "logs"
  release           = "main"
  administrators    = ["arn:aws:iam::111122223333:role/admin"]
}

run "each_service_account_has_one_role" {
  command = apply

  assert {
    condition = jsondecode(output.policies.gateway).Statement[0].Condition.StringEquals == {
      "oidc.eks.eu-central-1.amazonaws.com/id/ABC:aud" = "sts.amazonaws.com"
      "oidc.eks.eu-central-1.amazonaws.com/id/ABC:sub" = ["system:serviceaccount:logs:main-gateway"]
    }
    error_message = "The role of the gateway is for its service account only."
  }
}

run "people_assume_only_their_roles" {
  command = apply

  assert {
    condition     = jsondecode(output.policies.deployer).Statement[0].Action == "sts:AssumeRole"
    error_message = "Administrators assume the deployer."
  }

  assert {
    condition     = length(jsondecode(output.policies.gc).Statement) == 1
    error_message = "No person assumes the role that deletes blobs."
  }
}

run "another_arn_is_refused" {
  command = plan

  variables {
    oidc_provider_arn = "arn:aws:iam::111122223333:role/x"
  }

  expect_failures = [var.oidc_provider_arn]
}

run "a_deployment_without_administrators_is_refused" {
  command = plan

  variables {
    administrators = []
  }

  expect_failures = [var.administrators]
}

run "a_cluster_in_china" {
  command = apply

  variables {
    oidc_provider_arn = "arn:aws-cn:iam::111122223333:oidc-provider/oidc.eks.cn-north-1.amazonaws.com.cn/id/ABC"
    oidc_audience     = "sts.amazonaws.com.cn"
    administrators    = ["arn:aws-cn:iam::111122223333:role/admin"]
  }

  assert {
    condition = (
      jsondecode(output.policies.gateway).Statement[0].Condition.StringEquals["oidc.eks.cn-north-1.amazonaws.com.cn/id/ABC:aud"]
      == "sts.amazonaws.com.cn"
    )
    error_message = "The audience is that of the cluster."
  }

  assert {
    condition     = startswith(jsondecode(output.policies.gateway).Statement[0].Principal.Federated, "arn:aws-cn:")
    error_message = "The provider has the partition of the cluster."
  }
}
