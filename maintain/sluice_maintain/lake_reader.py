"""The reader of the lake for processes that may run without the packages of the lake."""

from collections.abc import Awaitable, Callable

from sluice_protocol.batch_in_lake import BatchInLake, unreadable_lake
from sluice_protocol.distribution import describe_missing_package
from sluice_protocol.manifests import AcceptedManifest
from sluice_store.port import ObjectStore


def make_lake_reader(
    store: ObjectStore, store_url: str
) -> Callable[[AcceptedManifest], Awaitable[BatchInLake]]:
    """Return the function that reads where a batch is in the lake of a store.

    The packages are imported by the first call, which takes 0.3 s. Without them, each result names
    the extra to install.
    """

    async def read_lake(manifest: AcceptedManifest) -> BatchInLake:
        try:
            from sluice_maintain.lake_places import LakeReader  # noqa: PLC0415 - as above
        except ModuleNotFoundError as error:
            return unreadable_lake(manifest, describe_missing_package("query", error.name))
        return await LakeReader(store=store, store_url=store_url).read(manifest)

    return read_lake
