"""No acceptance on a store that nobody has proved: the doctor's result is asked for at start."""

import structlog

from sluice_gateway.settings import GatewaySettings
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store import ObjectStore
from sluice_store.doctor import examine
from sluice_store.doctor_records import read_doctor, require_doctor, seal_result, write_result

log = structlog.get_logger()


async def prove(store: ObjectStore, url: str, settings: GatewaySettings) -> None:
    """Insists on a good result, unless the settings skip it, which every log line then says.

    A directory that was never examined is examined now: it is this machine's own file system, and
    that takes a second. A bucket is examined by a person, through every endpoint it has.

    Raises:
        StoreMisconfigured: The store was never proved, or breaks what acceptance needs.
        StoreError: No answer, or a refusal.
    """
    if settings.skip_probe:
        log.warning("store not proved", url=url)
        return
    if url.startswith("file://") and await read_doctor(store) is None:
        result = await examine([store], [url], SystemIds())
        await write_result(store, result, seal_result(result), SystemClock())
    found = await require_doctor(store)
    log.info("store proved", result_id=found.result_id, ended_at_unix_ns=found.ended_at_unix_ns)
