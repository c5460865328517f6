"""What store and queries contain of one run, in the form of docs/histories.md."""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from sluice_protocol.conflicts import conflict_prefix
from sluice_protocol.errors import SluiceError
from sluice_protocol.identity import format_identity
from sluice_protocol.keys import agent_prefix, digest_of
from sluice_protocol.manifests import decode_accepted, decode_conflict
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_query.request import LIMIT_MAX, Query
from sluice_reconciler.completeness import read_completeness
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.settings import CONCURRENCY
from sluice_store import ObjectStore
from sluice_store.port import read_bodies

if TYPE_CHECKING:
    from sluice_query.search import Searcher

WINDOW_NS: Final = 600 * NS_PER_S
"""The records of one query: far fewer than its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A stored decision about an identity; `blob` is the sha256 of the bytes that it names."""

    kind: Literal["manifest", "quarantine"]
    identity: str
    sha256: str
    blob: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A record of an answer."""

    agent: str
    boot: str
    seq: int
    body: str
    kind: Literal["row"] = "row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Sequence numbers that `sluice gaps` reports, `to` inclusive."""

    agent: str
    boot: str
    from_: int
    to: int
    kind: Literal["gap"] = "gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Everything that was read of one run.

    Attributes:
        rows: None if the answer could not be read.
        reasons: Why records may be missing in the answer.
    """

    manifests: tuple[Manifest, ...]
    gaps: tuple[Gap, ...]
    rows: tuple[Row, ...] | None
    reasons: tuple[str, ...]

    def write(self, path: Path) -> None:
        """Write state.jsonl."""
        facts: list[Manifest | Row | Gap] = [*self.manifests, *(self.rows or ()), *self.gaps]
        with path.open("w") as file:
            for one in facts:
                fact = {name.rstrip("_"): value for name, value in asdict(one).items()}
                file.write(json.dumps(fact) + "\n")


async def read_state(
    store: ObjectStore, searcher: "Searcher", agent: str, run: str, since_ns: int, until_ns: int
) -> RunState:
    """Read what the boots whose names begin with `run` left, and records between two times."""
    gaps = [
        Gap(agent=boot.agent_id, boot=boot.boot_id, from_=gap.seq_start, to=gap.seq_end)
        async for boot in read_completeness(store, agent)
        if boot.boot_id.startswith(run)
        for gap in boot.gaps
    ]
    accepted = _read_manifests(store, agent_prefix(agent), run, _accepted)
    refused = _read_manifests(store, conflict_prefix(agent), run, _refused)
    rows, reasons = await _read_rows(searcher, agent, run, range(since_ns, until_ns + 1, WINDOW_NS))
    return RunState(
        manifests=(*[one async for one in accepted], *[one async for one in refused]),
        gaps=tuple(gaps),
        rows=rows,
        reasons=reasons,
    )


async def _read_rows(
    searcher: "Searcher", agent: str, run: str, starts_ns: Iterable[int]
) -> tuple[tuple[Row, ...] | None, tuple[str, ...]]:
    """Return the records of windows of time and why some may be missing; None if unreadable."""
    rows: list[Row] = []
    reasons: dict[str, None] = {}
    for start_ns in starts_ns:
        wanted = Query(
            from_ns=UnixNs(start_ns),
            to_ns=UnixNs(start_ns + WINDOW_NS),
            agents=(agent,),
            limit=LIMIT_MAX,
        )
        try:
            found = await searcher.search(wanted)
        except SluiceError as error:
            return None, (str(error),)
        reasons |= dict.fromkeys(found.summary.reasons)
        for one in found.records:
            boot, seq = str(one["boot_id"]), int(str(one["seq"]))
            if boot.startswith(run):
                rows.append(Row(agent=agent, boot=boot, seq=seq, body=str(one["body"])))
    return tuple(rows), tuple(reasons)


async def _read_manifests(
    store: ObjectStore,
    prefix: str,
    run: str,
    decode: Callable[[ObjectKey, bytes], tuple[Manifest, str]],
) -> AsyncIterator[Manifest]:
    """Read the manifests of a run and the bytes that they name."""
    boot = f"/boot={run.encode().hex()}"
    pages = RequestLimit(CONCURRENCY).read(store, prefix, lambda key: boot in key)
    async for page in pages:
        found = [decode(key, body) for key, body in page]
        blobs = await read_bodies(store, [ObjectKey(blob) for _, blob in found])
        for (one, _), blob in zip(found, blobs, strict=True):
            yield replace(one, blob="" if blob is None else digest_of(blob))


def _accepted(key: ObjectKey, body: bytes) -> tuple[Manifest, str]:
    found = decode_accepted(key, body)
    who = format_identity(found)
    one = Manifest(kind="manifest", identity=who, sha256=found.frame_sha256, blob="")
    return one, found.raw_blob_key


def _refused(key: ObjectKey, body: bytes) -> tuple[Manifest, str]:
    found = decode_conflict(key, body)
    who = format_identity(found)
    one = Manifest(kind="quarantine", identity=who, sha256=found.submitted_frame_sha256, blob="")
    return one, found.submitted_raw_blob_key
