"""Buckets for tests, created through the SDK."""

from typing import Final

from sluice_store.s3.sdk import open_sdk
from sluice_store.s3.settings import parse_s3_url

NEXT_SECOND_S: Final = 2.1
"""A server rounds the times of versions up and its clock down to whole seconds: only after this
time a version counts as superseded."""


async def make_bucket(url: str, *, versioning: str | None = "Enabled", lock: bool = False) -> None:
    """Create the bucket of a store URL, with versioning in the given state."""
    settings = parse_s3_url(url)
    async with open_sdk(settings) as sdk:
        await sdk.client.create_bucket(Bucket=settings.bucket, ObjectLockEnabledForBucket=lock)
        if versioning:
            await sdk.client.put_bucket_versioning(
                Bucket=settings.bucket, VersioningConfiguration={"Status": versioning}
            )
