"""Builders of accepted batches in a local store, and assertions on the resulting lake.

Also here: the files of a lake table in a directory, and how to make them older for vacuum.
"""

import asyncio
import json
import math
import os
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from support.builders import make_identity, manifest_of

from sluice_lake.tables import Table
from sluice_protocol.authority import Authority
from sluice_protocol.columns import Columns
from sluice_protocol.fields import KINDS
from sluice_protocol.frame import encode_frame
from sluice_protocol.keys import accepted_key, blob_key
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.records import (
    EntryRecord,
    LogRecord,
    MetricPoint,
    SpanRecord,
    entries_from_records,
    logs_from_records,
    metrics_from_records,
    spans_from_records,
)
from sluice_queue.producer import Producer
from sluice_queue.worklists import by_lane
from sluice_store import StoreMode, create_authority, open_store, read_authority

T0_NS = 1_790_000_000_123_456_789
RESOURCE = (("host.name", "h1"), ("service.name", "nginx"))


@dataclass(frozen=True)
class Sent:
    """One batch as it was sent: its frame, its manifest and its records."""

    manifest: AcceptedManifest
    frame: bytes
    rows: tuple[tuple[Any, ...], ...]


def _log_rows(start: int, count: int, agent: str) -> tuple[Columns, list[Any]]:
    records = [
        LogRecord(
            ts_ns=T0_NS + n * 1_000_000_007,
            body=f"{agent} line {n} ä€ {'x' * (n % 13)}",
            severity=n % 25,
            attributes={"path": f"/p/{n % 3}", "grade": "info"} if n % 2 else {},
        )
        for n in range(start, start + count)
    ]
    rows = [(r.ts_ns, r.body, r.severity, dict(r.attributes)) for r in records]
    return logs_from_records(records), rows


def _metric_rows(start: int, count: int, agent: str) -> tuple[Columns, list[Any]]:
    values = [math.nan, -0.0, 1e300, 0.1]
    records = [
        MetricPoint(
            ts_ns=T0_NS + n * 1_000_003,
            name=f"m.{n % 5}",
            value=values[n % 4] if n % 7 == 0 else n,
            type=n % 3,
            attributes={"agent": agent} if n % 3 else {},
        )
        for n in range(start, start + count)
    ]
    rows = [
        (r.ts_ns, r.name, struct.pack("<d", r.value), r.type, dict(r.attributes)) for r in records
    ]
    return metrics_from_records(records), rows


def _entry_rows(start: int, count: int, agent: str) -> tuple[Columns, list[Any]]:
    timed = start % 2 == 0
    records = [
        EntryRecord(
            key=bytes([n % 256, 0]),
            value=agent.encode() * (n % 4),
            ts_ns=T0_NS + n if timed else None,
        )
        for n in range(start, start + count)
    ]
    return entries_from_records(records), [(r.ts_ns, r.key, r.value) for r in records]


def _span_rows(start: int, count: int, agent: str) -> tuple[Columns, list[Any]]:
    records = [
        SpanRecord(
            ts_ns=T0_NS + n * 1_000_003,
            name=f"op {n % 3}",
            span_kind=n % 6,
            duration_ns=2**53 + n,
            status=n % 3,
            trace_id=f"{n // 4:032x}",
            span_id=f"{n:016x}",
            parent_id=f"{n - 1:016x}" if n % 4 else "",
            events='[{"name":"e"}]' if n % 5 == 0 else "",
            attributes={"agent": agent} if n % 3 else {},
        )
        for n in range(start, start + count)
    ]
    return spans_from_records(records), [
        _span_row(attrgetter(*_SPAN_NAMES)(one)) for one in records
    ]


_SPAN_NAMES = ("ts_ns", *(one.name for one in KINDS["spans"].own_fields), "attributes")


def _span_row(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values of a span, with None for empty texts as the lake has them."""
    *own, attributes = values
    return (*(None if one == "" else one for one in own), dict(attributes or []))


_MAKERS = {
    "logs": _log_rows,
    "metrics": _metric_rows,
    "entries": _entry_rows,
    "spans": _span_rows,
}


def make_batch(
    start: int,
    count: int = 10,
    *,
    agent: str = "host-1",
    boot: str = "b1",
    kind: str = "logs",
    at_ns: int = T0_NS,
    text: str | None = None,
) -> Sent:
    columns, rows = _MAKERS[kind](start, count, text or agent)
    who = make_identity(start, count=count, agent=agent, boot=boot)
    frame = encode_frame(identity=who, columns=columns, resource=RESOURCE)
    full = tuple((agent, boot, start + n, *row) for n, row in enumerate(rows))
    return Sent(manifest=manifest_of(frame, at_ns=at_ns), frame=frame, rows=full)


@dataclass
class Deployment:
    """A local store with accepted batches."""

    root: Path
    lanes: int = 2
    sent: list[Sent] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"file://{self.root}"

    def lose(self, *folders: str) -> None:
        """Remove folders and the store's noncurrent versions of them."""
        for name in folders:
            shutil.rmtree(self.root / name)
            shutil.rmtree(self.root / ".sluice" / "generations" / name, ignore_errors=True)

    def init(self, letter: str = "A") -> "Deployment":
        asyncio.run(self._init(letter))
        return self

    async def _init(self, letter: str) -> None:
        async with open_store(self.url, StoreMode.CREATE) as store:
            await create_authority(store, Authority(authority_id=letter * 26, lanes=self.lanes))

    def accept(self, batches: Sequence[Sent], *, blobs: bool = True) -> None:
        """Create blobs and manifests, as a gateway does."""
        asyncio.run(self._accept(batches, blobs=blobs))
        self.sent += batches

    async def _accept(self, batches: Sequence[Sent], *, blobs: bool) -> None:
        async with open_store(self.url) as store:
            for one in batches:
                if blobs:
                    await store.create(blob_key(one.manifest.digest), one.frame)
                key = accepted_key(one.manifest.identity)
                await store.create(key, encode_record(one.manifest))

    def put_blob(self, one: Sent, body: bytes | None = None) -> None:
        async def put() -> None:
            async with open_store(self.url) as store:
                await store.overwrite(blob_key(one.manifest.digest), body or one.frame)

        asyncio.run(put())

    def enqueue(self, batches: Sequence[Sent]) -> None:
        """Append one work list per lane, as the reconciler does."""
        asyncio.run(self._enqueue(batches))

    async def _enqueue(self, batches: Sequence[Sent]) -> None:
        async with open_store(self.url) as store:
            authority = await read_authority(store)
            split = by_lane([one.manifest for one in batches], authority.lanes)
            for lane, found in split.items():
                async with Producer.open(store, queue="spark", lane=lane) as producer:
                    handle = await producer.produce(found)
                    await handle.result()

    def deliver(self, batches: Sequence[Sent]) -> None:
        self.accept(batches)
        self.enqueue(batches)

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(str(self.root / "lake" / "v1" / name))

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self.table(name).to_pyarrow_table().to_pylist()


def lake_rows(deployment: Deployment, kind: str) -> list[tuple[Any, ...]]:
    """Return a table's records in the form of `Sent.rows`, sorted."""
    found: list[tuple[Any, ...]] = []
    for row in deployment.rows(kind):
        head = (row["agent_id"], row["boot_id"], row["seq"], row["ts_ns"])
        attributes = dict(row["attributes"] or [])
        assert row["ts"] is None or int(row["ts"].timestamp() * 1_000_000) >= 0
        match kind:
            case "logs":
                assert dict(row["resource"]) == dict(RESOURCE)
                found.append((*head, row["body"], row["severity"] or 0, attributes))
            case "metrics":
                packed = struct.pack("<d", row["value"])
                found.append((*head, row["name"], packed, row["type"], attributes))
            case "spans":
                found.append((*head[:3], *_span_row([row[name] for name in _SPAN_NAMES])))
            case _:
                found.append((*head, row["key"], row["value"]))
    return sorted(found, key=lambda row: row[:3])


def sent_rows(batches: Sequence[Sent], kind: str) -> list[tuple[Any, ...]]:
    """Return the records of a kind that were sent, each identity once, sorted."""
    unique = {one.manifest.identity: one for one in batches if one.manifest.kind == kind}
    return sorted((row for one in unique.values() for row in one.rows), key=lambda row: row[:3])


def assert_lake_holds(deployment: Deployment, batches: Sequence[Sent]) -> None:
    """Assert that lake and ledger contain every record of the batches exactly once."""
    for kind in KINDS:
        assert lake_rows(deployment, kind) == sent_rows(batches, kind)
    ledger = sorted(
        (row["agent_id"], row["boot_id"], row["seq_start"], row["seq_end"], row["frame_sha256"])
        for row in deployment.rows("batches")
    )
    wanted = {
        (m.agent_id, m.boot_id, m.seq_start, m.seq_end, m.frame_sha256)
        for m in (one.manifest for one in batches)
    }
    assert ledger == sorted(wanted)


def folder(place: Deployment, table: Table) -> Path:
    return place.root / "lake" / "v1" / table.name


def files(place: Deployment, table: Table) -> set[Path]:
    return {Path(uri) for uri in place.table(table.name).file_uris()}


def age(place: Deployment, table: Table, paths: set[Path], hours: float) -> None:
    """Make files older, and the removals of them in the log."""
    for path in paths:
        older_s = path.stat().st_mtime - hours * 3600
        os.utime(path, (older_s, older_s))
    names = {path.name for path in paths}
    for commit in (folder(place, table) / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "remove" in action and Path(action["remove"]["path"]).name in names:
                action["remove"]["deletionTimestamp"] -= int(hours * 3_600_000)
        commit.write_text("\n".join(json.dumps(action) for action in actions))
