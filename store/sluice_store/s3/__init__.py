"""S3 and what speaks like it, behind the port."""

from sluice_store.s3.settings import S3Settings, parse_s3_url
from sluice_store.s3.store import S3Store, open_s3_store

__all__ = ["S3Settings", "S3Store", "open_s3_store", "parse_s3_url"]
