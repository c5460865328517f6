"""`sluice retention`: how long raw batches are kept, and the proof before they expire."""

import asyncio
import re
from typing import TYPE_CHECKING, Final

import msgspec
from cyclopts import App

from sluice_cli.shell.operator import user_name
from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.expiry import Holds, RawRetention, keep_s_least
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.timestamps import format_rfc3339
from sluice_store import StoreMode, open_deployment
from sluice_store.authority import read_authority
from sluice_store.retry import Backoff
from sluice_store.stored_expiry import read_holds, read_raw_retention, set_raw_retention

if TYPE_CHECKING:
    from rich.console import Console

app = App(name="retention", help="Decide how long raw batches are kept.")

_DAYS: Final = re.compile(r"([1-9][0-9]{0,4})d", re.ASCII)
_NEVER: Final = "never"
_DAY_S: Final = 86_400


class RetentionState(msgspec.Struct, frozen=True, kw_only=True):
    """What is in effect.

    Attributes:
        rule: The last decision; null if nothing was ever decided, so that nothing expires.
        least_s: The shortest raw retention that the store accepts.
        holds: The number of holds in effect.
        unreadable: The number of holds that cannot be decoded; then nothing expires.
    """

    rule: RawRetention | None
    least_s: int
    holds: int
    unreadable: int


@app.command(name="set")
def set_command(
    *, store: StoreUrl = STORE_DEFAULT, raw: str, note: str = "", json: Json = False
) -> int:
    """Decide the age at which raw batches may expire; the decision is recorded.

    By default they never do. A batch expires only when the tables are proved to contain its
    records; its manifest stays.

    Args:
        store: The store.
        raw: Days, such as `30d`: at least the retry horizon plus 7 days. `never` withdraws the
            rule for batches that have not expired.
        note: Why; kept in the record.
        json: Print JSON for programs.
    """
    rule = asyncio.run(_set(store, _parse_raw(raw), note))
    emit(rule, as_json=json, human=lambda console: console.print(_describe(rule)))
    return ExitCode.DONE.value


@app.command
def show(*, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """Show the decision in effect, and how many holds there are."""
    state = asyncio.run(_show(store))
    emit(state, as_json=json, human=lambda console: _draw(console, state))
    return ExitCode.DONE.value


async def _set(url: str, keep_s: int | None, note: str) -> RawRetention:
    async with open_deployment(url) as store:
        by, backoff = f"operator:{user_name()}", Backoff.seeded_by(SystemClock())
        return await set_raw_retention(store, keep_s, by=by, note=note, backoff=backoff)


async def _show(url: str) -> RetentionState:
    async with open_deployment(url, StoreMode.READ) as store:
        rule = await read_raw_retention(store)
        holds: Holds = await read_holds(store)
        return RetentionState(
            rule=rule,
            least_s=keep_s_least(await read_authority(store)),
            holds=len(holds.active),
            unreadable=len(holds.unreadable),
        )


def _parse_raw(text: str) -> int | None:
    if text == _NEVER:
        return None
    found = _DAYS.fullmatch(text)
    if found is None:
        raise BadUsage(f"raw retention is a number of days, as `30d`, or never: raw=`{text[:40]}`")
    return int(found[1]) * _DAY_S


def _describe(rule: RawRetention | None) -> str:
    if rule is None:
        return "raw batches never expire: nothing was decided"
    at = f"decided by {rule.decided_by} at {format_rfc3339(rule.decided_at_unix_ns)}"
    if rule.keep_s is None:
        return f"raw batches never expire, {at}"
    return f"raw batches may expire after {rule.keep_s / _DAY_S:g} days, {at}"


def _draw(console: "Console", state: RetentionState) -> None:
    console.print(_describe(state.rule), markup=False)
    console.print(f"  shortest possible: {state.least_s / _DAY_S:g} days")
    console.print(f"  holds: {state.holds} in effect, {state.unreadable} unreadable")
