# Who may assume each role. This module has no provider, so its tests run everywhere: `tofu test`.
variable "oidc_provider_arn" {
  description = "The OIDC provider of the EKS cluster."
  type        = string

  validation {
    condition     = can(regex("^arn:aws(-cn|-us-gov)?:iam::[0-9]{12}:oidc-provider/.+", var.oidc_provider_arn))
    error_message = "The ARN of an OIDC provider looks like arn:aws:iam::111122223333:oidc-provider/oidc.eks…"
  }
}

variable "oidc_audience" {
  description = "The audience of the tokens of service accounts."
  type        = string
  default     = "sts.amazonaws.com"
}

variable "namespace" {
  description = "The namespace of the Helm release."
  type        = string
}

variable "release" {
  description = "The name of the Helm release."
  type        = string
}

variable "administrators" {
  description = "ARNs of principals that may assume the roles auditor, operator and deployer. One of them does the first apply."
  type        = list(string)

  validation {
    condition     = length(var.administrators) > 0
    error_message = "Name at least one principal: otherwise the role deployer could not be assumed."
  }
}

locals {
  issuer = regex("oidc-provider/(.+)$", var.oidc_provider_arn)[0]

  # The service accounts of the chart by role of `sluice policies`. Queries read with the role auditor; with delete
  # requests (`query.operators`) they need the role operator.
  accounts = {
    gateway    = ["gateway"]
    reconciler = ["reconciler"]
    spark      = ["spark-jobs"]
    maintainer = ["maintain"]
    certifier  = ["certifier"]
    gc         = ["gc"]
    auditor    = ["query"]
    operator   = []
    console    = ["console"]
    deployer   = []
  }
  people = ["auditor", "operator", "deployer"]

  by_service_account = {
    for role, names in local.accounts : role => length(names) == 0 ? [] : [{
      Effect    = "Allow"
      Principal = { Federated = var.oidc_provider_arn }
      Action    = "sts:AssumeRoleWithWebIdentity"
      Condition = {
        StringEquals = {
          "${local.issuer}:aud" = var.oidc_audience
          "${local.issuer}:sub" = [
            for name in names : "system:serviceaccount:${var.namespace}:${var.release}-${name}"
          ]
        }
      }
    }]
  }
  by_people = {
    for role in keys(local.accounts) : role => !contains(local.people, role) ? [] : [{
      Effect    = "Allow"
      Principal = { AWS = var.administrators }
      Action    = "sts:AssumeRole"
    }]
  }
}

output "policies" {
  description = "The trust policy of each role, as JSON."
  value = {
    for role in keys(local.accounts) : role => jsonencode({
      Version   = "2012-10-17"
      Statement = concat(local.by_service_account[role], local.by_people[role])
    })
  }
}
