"""Opens a store together with the engine that works on it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sluice_gc.engine import Engine, LocalEngine
from sluice_gc.settings import EngineSettings
from sluice_store import open_store
from sluice_store.port import ObjectStore
from sluice_store.url import parse_local_path


@asynccontextmanager
async def open_engine(
    url: str, settings: EngineSettings
) -> AsyncIterator[tuple[ObjectStore, Engine]]:
    """Opens a store and an engine; a Spark session that this starts is stopped again.

    Raises:
        BadUsage: The URL is of another form.
        StoreError: The store cannot be opened.
    """
    async with open_store(url) as store:
        if settings.engine == "local":
            yield store, LocalEngine(store)
            return
        # Spark is imported only where it is used: it costs a second, and a JVM.
        from sluice_gc.spark_engine import SparkEngine  # noqa: PLC0415
        from sluice_spark.session import SessionSettings, open_session  # noqa: PLC0415

        wanted = SessionSettings(master=settings.master, driver_memory=settings.driver_memory)
        session = await asyncio.to_thread(open_session, wanted, delta=False)
        try:
            yield store, SparkEngine(session, absolute_url(url))
        finally:
            await asyncio.to_thread(session.stop)


def absolute_url(url: str) -> str:
    """Gives a URL that means the same on an executor, whose working directory is another."""
    if not url.startswith("file://"):
        return url
    return f"file://{parse_local_path(url)}"
