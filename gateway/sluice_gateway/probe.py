"""No acceptance on a store that nobody has proved: the doctor's result is asked for at start."""

import structlog

from sluice_gateway.settings import GatewaySettings
from sluice_store import ObjectStore, SystemIds
from sluice_store.doctor import examine
from sluice_store.doctor_records import read_doctor, require_doctor, seal_result, write_result

log = structlog.get_logger()


async def prove(store: ObjectStore, settings: GatewaySettings) -> None:
    """Insists on a good result, unless the settings skip it, which every log line then says.

    Raises:
        StoreMisconfigured: The store was never proved, or breaks what acceptance needs.
        StoreError: No answer, or a refusal.
    """
    if settings.skip_probe:
        log.warning("store not proved")
        return
    found = await require_doctor(store)
    log.info("store proved", result_id=found.result_id, ended_at_unix_ns=found.ended_at_unix_ns)


async def prove_spool(store: ObjectStore, settings: GatewaySettings) -> None:
    """Proves a spool's directory like an authority; one that is new is examined now.

    A spool is made by its gateway, on this machine's own disk, and the examination takes a second;
    nobody else could have run it before.

    Raises:
        StoreMisconfigured: The directory breaks what acceptance needs.
        StoreError: A refusal.
    """
    if not settings.skip_probe and await read_doctor(store) is None:
        result = await examine([store], [settings.spool], SystemIds())
        await write_result(store, result, seal_result(result))
    await prove(store, settings)
