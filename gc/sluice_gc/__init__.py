"""Audit, certificates, and deletion of orphan blobs with a proof."""
