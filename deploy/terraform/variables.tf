variable "account" {
  description = "The AWS account that owns the bucket and the roles; as in policies.toml."
  type        = string

  validation {
    condition     = can(regex("^[0-9]{12}$", var.account))
    error_message = "An account has 12 digits."
  }
}

variable "region" {
  description = "The region of the bucket; as in policies.toml."
  type        = string
}

variable "bucket" {
  description = "The name of the bucket; as in policies.toml."
  type        = string
}

variable "oidc_provider_arn" {
  description = "The OIDC provider of the EKS cluster whose service accounts assume the roles."
  type        = string
}

variable "oidc_audience" {
  description = "The audience of the tokens of service accounts, as the OIDC provider lists it. Some clusters in China use sts.amazonaws.com.cn."
  type        = string
  default     = "sts.amazonaws.com"
}

variable "namespace" {
  description = "The namespace of the Helm release."
  type        = string
  default     = "sluice"
}

variable "release" {
  description = "The name of the Helm release."
  type        = string
  default     = "sluice"
}

variable "administrators" {
  description = "ARNs of principals that may assume the roles auditor, operator and deployer. One of them does the first apply."
  type        = list(string)

  validation {
    condition     = length(var.administrators) > 0
    error_message = "Name at least one principal: otherwise the role deployer could not be assumed."
  }
}
