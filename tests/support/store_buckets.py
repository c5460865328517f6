"""Buckets for tests, created through the SDK."""

from sluice_store.s3.sdk import open_sdk
from sluice_store.s3.settings import parse_s3_url


async def make_bucket(url: str, *, versioning: str | None = "Enabled") -> None:
    """Create the bucket of a store URL, with versioning in the given state."""
    settings = parse_s3_url(url)
    async with open_sdk(settings) as sdk:
        await sdk.client.create_bucket(Bucket=settings.bucket)
        if versioning:
            await sdk.client.put_bucket_versioning(
                Bucket=settings.bucket, VersioningConfiguration={"Status": versioning}
            )
