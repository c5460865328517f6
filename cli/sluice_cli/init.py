"""`sluice init`: create the authority's settings."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from sluice_cli.shell.operator import operator_name
from sluice_cli.shell.options import STORE_DEFAULT, Json, NewStoreUrl
from sluice_cli.shell.output import emit
from sluice_protocol.authority import (
    RETRY_HORIZON_S_DEFAULT,
    AcceptanceMode,
    Authority,
    check_authority,
)
from sluice_protocol.errors import BadUsage
from sluice_protocol.expiry import RetentionDecision, check_keep_s, describe_keep, parse_keep
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store import StoreMode, create_authority, open_store
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff
from sluice_store.stored_expiry import Unchanged, read_retention, set_retention

if TYPE_CHECKING:
    from rich.console import Console

LANES_DEFAULT = 4


def init(
    *,
    store: NewStoreUrl = STORE_DEFAULT,
    retry_horizon_s: int = RETRY_HORIZON_S_DEFAULT,
    lanes: int = LANES_DEFAULT,
    acceptance: AcceptanceMode = "s3_manifest",
    spool_writer: Annotated[str | None, Parameter(name="--spool-writer")] = None,
    keep: str | None = None,
    json: Json = False,
) -> None:
    """Create the settings of a deployment; identical existing settings are kept.

    Args:
        store: The acceptance authority.
        retry_horizon_s: How long an agent may keep sending the same bytes, seconds.
        lanes: Number of queue lanes, 1 to 1000; it cannot be changed later.
        acceptance: Where acceptance happens.
        spool_writer: In `local_spool` mode, the collector id of the one gateway.
        keep: How long records are kept, in days such as `90d`: the tables delete them, and raw
            batches may expire. At least the retry horizon plus 7 days; by default `never`. It is
            recorded, and `sluice retention set` changes it.
        json: Print JSON for programs.
    """
    wanted = Authority(
        authority_id=SystemIds().ulid(),
        retry_horizon_s=retry_horizon_s,
        lanes=lanes,
        acceptance=acceptance,
        spool_writer=spool_writer,
    )
    check_authority(wanted)  # before its directory is created
    keep_s: int | Unchanged | None = "unchanged" if keep is None else parse_keep("keep", keep)
    if keep_s != "unchanged":
        check_keep_s(wanted, keep_s)

    async def write() -> tuple[Authority, RetentionDecision | None]:
        async with open_store(store, StoreMode.CREATE) as opened:
            return await create_deployment(opened, wanted, keep_s)

    settings, rule = asyncio.run(write())
    emit(settings, as_json=json, human=lambda console: _draw(console, store, settings, rule))


async def create_deployment(
    store: ObjectStore, wanted: Authority, keep_s: int | Unchanged | None
) -> tuple[Authority, RetentionDecision | None]:
    """Create the settings, and decide how long records are kept unless that is unchanged.

    The role of a gateway creates the settings, and may neither read nor write decisions about
    retention; the role of an operator may write only those.
    """
    settings = await create_authority(store, wanted)
    if keep_s == "unchanged":
        return settings, None
    rule = await read_retention(store)
    if rule is None and keep_s is None:
        return settings, rule
    if rule is not None and (rule.raw_keep_s, rule.tables_keep_s) != (keep_s, keep_s):
        raise BadUsage(
            "the store has another decision about retention: see `sluice retention show`, and"
            f" change it with `sluice retention set`, keep=`{describe_keep(keep_s)}`"
        )
    return settings, await set_retention(
        store,
        keep_s,
        tables_keep_s=keep_s,
        by=operator_name(),
        note="sluice init",
        backoff=Backoff.seeded_by(SystemClock()),
    )


def _draw(
    console: "Console", url: str, settings: Authority, rule: RetentionDecision | None
) -> None:
    console.print(f"authority {settings.authority_id} in {url}")
    for name, value in msgspec.structs.asdict(settings).items():
        if name.endswith("_s"):
            console.print(f"  {name} = {value} s")
        elif name in {"lanes", "acceptance", "spool_writer"} and value is not None:
            console.print(f"  {name} = {value}")
    kept = "permanently, unless `sluice retention set` decided otherwise"
    if rule is not None:
        tables, raw = describe_keep(rule.tables_keep_s), describe_keep(rule.raw_keep_s)
        kept = f"tables end after {tables}, raw batches after {raw}"
    console.print(f"  kept {kept}", markup=False)
    console.print(f"next: sluice doctor --store {url}")
