"""Audits, certificates, plans and deletion: auditor, certificate, plan, plan_runner."""
