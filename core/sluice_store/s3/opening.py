"""Puts the S3 adapter together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sluice_store.s3.listing import SdkBucket
from sluice_store.s3.sdk import open_sdk
from sluice_store.s3.settings import S3Settings
from sluice_store.s3.store import S3Store
from sluice_store.s3.wire import open_wire


@asynccontextmanager
async def open_s3_store(settings: S3Settings) -> AsyncIterator[S3Store]:
    """Opens one bucket and prefix as a store; nothing is sent before the first verb.

    Raises:
        StoreDenied: The machine has no credentials.
        StoreMisconfigured: The SDK is missing, or the settings do not fit.
    """
    async with (
        open_sdk(settings) as sdk,
        open_wire(settings, sdk.address, sdk.credentials) as wire,
    ):
        yield S3Store(wire, SdkBucket(sdk, settings.prefix), settings.prefix)
