"""Makes buckets for tests through the SDK, as an administrator would."""

from sluice_store.s3.sdk import open_sdk
from sluice_store.s3.settings import parse_s3_url


async def make_bucket(url: str, *, versioning: str | None = "Enabled") -> None:
    """Makes the bucket of a store URL, with versioning in the state asked for."""
    settings = parse_s3_url(url)
    async with open_sdk(settings) as sdk:
        await sdk.client.create_bucket(Bucket=settings.bucket)
        if versioning:
            await sdk.client.put_bucket_versioning(
                Bucket=settings.bucket, VersioningConfiguration={"Status": versioning}
            )
