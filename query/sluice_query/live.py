"""Following by the reconciler's live records: each is told as soon as it was accepted and read.

The reconciler gives lines, page by page; what of them a question wants is decided by the same
statement as everywhere else. Source: ADR 0083.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import msgspec
import pyarrow as pa

from sluice_protocol.errors import BadUsage
from sluice_protocol.manifests import Kind
from sluice_protocol.ndjson import columns_from_ndjson
from sluice_protocol.units import UnixNs
from sluice_query.answer import Answer, Row, Summary
from sluice_query.arrow import TEXT_MAP, attribute_column, own_columns
from sluice_query.deletes import read_deletes
from sluice_query.engine import TAIL, open_engine
from sluice_query.errors import ReconcilerAway
from sluice_query.request import Query
from sluice_query.search import Searcher
from sluice_query.sql import Sources, records_sql, shown_columns

PAGE_LINES: Final = 10_000
WAIT_S: Final = 20
TIMEOUT_S: Final = 60
AGAIN_S: Final = 2.0
SEEN_MAX: Final = 200_000
"""So many records are remembered, so that a reconciler that starts anew repeats none of them."""
FOREVER_NS: Final = UnixNs(2**63 - 1)
_NS_PER_US: Final = 1000
_OFF: Final = "the live state is off"
_OWN: Final = frozenset({"agent_id", "boot_id", "seq", "kind", "accepted_at_unix_ns", "resource"})


class _Summary(msgspec.Struct, frozen=True):
    next: str
    partial: bool = False
    reasons: tuple[str, ...] = ()
    more: bool = False


class _Last(msgspec.Struct, frozen=True):
    summary: _Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What the reconciler gave at once.

    Attributes:
        lines: Its records, decoded.
        next: What to ask with for what comes after.
        more: Whether there is more at once.
        reasons: Why something may be missing.
    """

    lines: tuple[dict[str, Any], ...]
    next: str
    more: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """Where live records are asked for.

    Attributes:
        session: An open HTTP session.
        url: The operator API, `http://host:port`.
        token: Its `api_token`, when it has one.
    """

    session: aiohttp.ClientSession
    url: str
    token: str = ""

    async def ask(self, agents: Sequence[str], after: str | None) -> Page:
        """Gives the newest records held, or what came since `after`, waiting for it a while.

        Raises:
            BadUsage: It refused, or is not a reconciler that gives live records.
            ReconcilerAway: It did not answer.
        """
        asked = {"limit": str(PAGE_LINES)}
        if len(agents) == 1:
            asked["agent"] = agents[0]
        if after is not None:
            asked |= {"after": after, "wait": str(WAIT_S)}
        url = f"{self.url.rstrip('/')}/v1/live?{urlencode(asked)}"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            async with self.session.get(url, headers=headers) as answer:
                return _page(self.url, answer.status, await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ReconcilerAway(self.url, reason) from error


def _page(url: str, status: int, body: bytes) -> Page:
    if status == 401:  # noqa: PLR2004 - RFC 9110
        raise BadUsage(f"the reconciler asks for its api_token: set reconciler_token, url=`{url}`")
    lines = body.splitlines()
    try:
        if status != 200:  # noqa: PLR2004 - RFC 9110
            raise BadUsage(f"no live records there, status=`{status}`, url=`{url}`")
        summary = msgspec.json.decode(lines[-1], type=_Last).summary
        found = tuple(msgspec.json.decode(line, type=dict[str, Any]) for line in lines[:-1])
    except (msgspec.MsgspecError, IndexError) as error:
        raise BadUsage(f"this is not the API of a reconciler, url=`{url}`") from error
    return Page(lines=found, next=summary.next, more=summary.more, reasons=summary.reasons)


def live_table(kind: Kind, lines: Sequence[dict[str, Any]]) -> pa.Table:
    """Gives lines of one kind as a table with the columns of the lake that answers show."""
    plain = [
        msgspec.json.encode({name: value for name, value in line.items() if name not in _OWN})
        for line in lines
    ]
    columns = columns_from_ndjson(kind, plain)
    count = len(lines)
    accepted = [line["accepted_at_unix_ns"] // _NS_PER_US for line in lines]
    shared = {
        "agent_id": pa.array([line["agent_id"] for line in lines], pa.string()),
        "boot_id": pa.array([line["boot_id"] for line in lines], pa.string()),
        "seq": pa.array([line["seq"] for line in lines], pa.int64()),
        "ts_ns": pa.nulls(count, pa.int64()) if columns.ts is None else pa.array(columns.ts),
        "accepted_at": pa.array(accepted, pa.int64()).view(pa.timestamp("us", tz="UTC")),
        "attributes": attribute_column(columns, count),
        "resource": pa.array([list(line.get("resource", {}).items()) for line in lines], TEXT_MAP),
    }
    return pa.table(shared | own_columns(columns, count))


async def choose(searcher: Searcher, query: Query, lines: Sequence[dict[str, Any]]) -> list[Row]:
    """Gives the lines that a question wants and no delete hides, in time order.

    Raises:
        SluiceError: As `Searcher.answer`.
    """
    if not lines:
        return []
    deletes = await read_deletes(searcher.store, query)
    with open_engine(searcher.settings) as engine:
        if query.regex and query.text is not None:
            engine.check_pattern(query.text)
        # Batches with times of their own and batches without are frames of two shapes.
        groups = [[line for line in lines if ("ts" in line) is timed] for timed in (True, False)]
        tables = [live_table(query.kind, group) for group in groups if group]
        engine.show_table(TAIL, pa.concat_tables(tables))
        statement = records_sql(query, Sources(names=(TAIL,), deletes=deletes))
        found = await engine.bounded(
            lambda: engine.rows(statement), left_s=searcher.settings.time_s_max
        )
    return [dict(zip(shown_columns(query.kind), row, strict=True)) for row in found]


async def follow_live(
    searcher: Searcher, query: Query, reconciler: Reconciler
) -> AsyncIterator[Answer]:
    """Gives the latest records of a query, then each new one as it comes, without an end.

    Args:
        searcher: Whose store has the deletes.
        query: A question for records; its end is ignored.
        reconciler: Who has the records.

    Raises:
        BadUsage: The reconciler refused the first question.
        SluiceError: As `Searcher.answer`; the reconciler was away at the first question.
    """
    seen: dict[tuple[object, ...], None] = {}
    after: str | None = None
    wide = replace(query, to_ns=FOREVER_NS, limit=PAGE_LINES)
    while True:
        try:
            page = await reconciler.ask(query.agents, after)
        except ReconcilerAway as error:
            if after is None:
                raise
            yield _answer(query, [], (str(error),))
            await searcher.clock.sleep(AGAIN_S)
            continue
        if after is None and not page.lines and any(_OFF in reason for reason in page.reasons):
            raise BadUsage(f"{_OFF} there: set its live_bytes_max, url=`{reconciler.url}`")
        lines = [line for line in page.lines if line["kind"] == query.kind]
        fresh = [line for line in lines if _key(line) not in seen]
        seen |= dict.fromkeys(map(_key, fresh))
        for old in list(seen)[: max(len(seen) - SEEN_MAX, 0)]:
            del seen[old]
        rows = await choose(searcher, wide, fresh)
        yield _answer(query, rows if after else rows[-query.limit :], page.reasons)
        after = page.next


def _key(line: dict[str, Any]) -> tuple[object, ...]:
    return line["agent_id"], line["boot_id"], line["seq"]


def _answer(query: Query, rows: list[Row], reasons: tuple[str, ...]) -> Answer:
    summary = Summary(results=len(rows), partial=bool(reasons), reasons=reasons)
    return Answer(kind=query.kind, records=rows, summary=summary)
