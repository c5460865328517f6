"""Audit, certificates, and deletion with a proof."""
