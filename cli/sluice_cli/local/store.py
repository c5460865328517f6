"""The store of a deployment on one machine: created if it does not exist, then checked."""

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import AUTHORITY_SETTINGS
from sluice_protocol.outcomes import Found
from sluice_protocol.store_backends import is_local
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store.authority import create_authority, read_authority
from sluice_store.doctor import examine, read_doctor, seal_result, write_result
from sluice_store.mode import StoreMode
from sluice_store.port import ObjectStore
from sluice_store.url import open_store


async def prepare_store(url: str) -> Authority:
    """Create the settings of the authority unless the store has some, and examine a new bucket.

    Refuse an acceptance mode that needs a spool.
    """
    async with open_store(url, StoreMode.CREATE) as store:
        authority = await _read_or_create(store, url)
        if authority.acceptance != "s3_manifest":
            raise BadUsage(
                "cannot run on this store: it accepts in the spool of one gateway; start `sluice"
                f" gateway --spool` instead, acceptance=`{authority.acceptance}`, url=`{url}`"
            )
        # The gateway examines a directory, but leaves a bucket to an operator.
        if not is_local(url) and await read_doctor(store) is None:
            result = await examine([store], [url], SystemIds())
            await write_result(store, result, seal_result(result), SystemClock())
    return authority


async def _read_or_create(store: ObjectStore, url: str) -> Authority:
    if not isinstance(await store.get(AUTHORITY_SETTINGS), Found):
        return await create_authority(store)
    try:
        return await read_authority(store)
    except InvalidRecord as error:
        raise BadUsage(f"cannot read the settings of the store: {error}, url=`{url}`") from error
