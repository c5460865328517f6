"""Bucket and IAM policies that enforce the protocol, and their proof."""
