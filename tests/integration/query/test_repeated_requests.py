"""Repeated requests of combined batches: left out of the lake, of answers, and of HTTP queues."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace as copy_with
from support.builders import make_identity, manifest_of
from support.query_lake import DAY0_NS, bodies, deployment, make_query, run_query
from support.spark_lake import Deployment, Sent
from support.spark_local import ingest_locally, pending_rows

from sluice_protocol.authority import Authority
from sluice_protocol.frame import encode_frame
from sluice_protocol.manifests import RequestPart, encode_parts
from sluice_protocol.records import LogRecord, logs_from_records
from sluice_query.pending import PendingSnapshot, UnqueuedBatches, leave_out_repeated
from sluice_queue.worklists import PendingBatch
from sluice_reconciler.http_queue import ClaimedEntry
from sluice_reconciler.live_window import newest_lines
from sluice_reconciler.queue_api import DataCount, entry_chunks
from sluice_reconciler.service import Reconciler
from sluice_spark.ingest.descriptors import decode_descriptors, encode_descriptors
from sluice_store import open_store

LANES = 1


def combined(requests: Mapping[str, Sequence[str]], *, boot: str, start: int = 0) -> Sent:
    """Return a batch with the lines of each request."""
    lines = [line for each in requests.values() for line in each]
    who = make_identity(start, count=len(lines), agent="door:shop:c0", boot=boot)
    columns = logs_from_records(
        [LogRecord(ts_ns=DAY0_NS + ord(line[0]), body=line) for line in lines]
    )
    frame = encode_frame(identity=who, columns=columns)
    parts, at = list[RequestPart](), 0
    for name, each in requests.items():
        parts.append(RequestPart(request=name.encode().ljust(16), start=at, count=len(each)))
        at += len(each)
    one = copy_with(manifest_of(frame, at_ns=DAY0_NS), parts=encode_parts(parts))
    return Sent(manifest=one, frame=frame, rows=())


FIRST = combined({"r1": ["a", "b"], "r2": ["c"]}, boot="g1")
SECOND = combined({"r3": ["d"], "r2": ["c"], "r4": ["e"]}, boot="g2")
THIRD = combined({"r1": ["a", "b"], "r4": ["e"]}, boot="g1", start=3)


def reconcile(place: Deployment) -> None:
    async def run() -> None:
        async with open_store(place.url) as store:
            await Reconciler(store, Authority(authority_id="A" * 26, lanes=LANES)).once()

    asyncio.run(run())


def test_repeated_records_are_ingested_and_returned_once(tmp_path: Path) -> None:
    place = deployment(tmp_path, lanes=LANES)
    for batches, wanted in (([FIRST, SECOND], "abcde"), ([THIRD], "abcde")):
        place.accept(batches)
        reconcile(place)
        assert "".join(map(str, bodies(run_query(place, make_query())))) == wanted
    assert [row.manifest.kept for row in pending_rows(place.url)] == [
        ((0, 3),),
        ((0, 1), (2, 3)),
        (),
    ]
    totals = ingest_locally(place.url)
    assert (totals.batches, totals.records) == (3, 5)
    assert "".join(map(str, bodies(run_query(place, make_query())))) == "abcde"
    rows = place.rows("logs")
    found = {(row["boot_id"], row["seq"]): row["body"] for row in rows}
    assert found == {
        ("g1", 0): "a",
        ("g1", 1): "b",
        ("g1", 2): "c",
        ("g2", 0): "d",
        ("g2", 2): "e",
    }
    assert len(place.rows("batches")) == 3


def test_repetitions_of_ingested_requests_are_left_out(tmp_path: Path) -> None:
    place = deployment(tmp_path, lanes=LANES)
    for one in (FIRST, SECOND, THIRD):
        place.accept([one])
        reconcile(place)
        ingest_locally(place.url)
    assert "".join(map(str, bodies(run_query(place, make_query())))) == "abcde"


def test_descriptors_contain_what_is_repeated(tmp_path: Path) -> None:
    place = deployment(tmp_path, lanes=LANES)
    place.accept([FIRST, SECOND])
    reconcile(place)
    rows = pending_rows(place.url)
    again = decode_descriptors(_table(rows))
    assert [one.manifest.repeated for one in again] == [one.manifest.repeated for one in rows]
    assert again[1].manifest.repeated == ((1, 2),)


def _table(rows: Any) -> Any:
    return pa.Table.from_batches([encode_descriptors(rows)])


def test_consumers_of_http_queues_receive_the_other_records(tmp_path: Path) -> None:
    place = deployment(tmp_path, lanes=LANES)
    place.accept([FIRST, SECOND, THIRD])
    reconcile(place)
    batches = tuple(row.manifest for row in pending_rows(place.url))

    async def run() -> list[dict[str, Any]]:
        async with open_store(place.url) as store:
            entry = ClaimedEntry(
                lease_id="l", lane=0, sequence=1, attempts=0, lease_s=60.0, batches=batches
            )
            count = DataCount()
            lines = [line async for line in entry_chunks(store, entry, "records", count)]
            assert count.records == 5
            return [msgspec.json.decode(one) for line in lines for one in line.splitlines()]

    found = asyncio.run(run())
    read = sorted(one["record"]["body"] for one in found if "record" in one)
    assert "".join(read) == "abcde"


def test_live_records_leave_out_the_repeated_ones() -> None:
    one = copy_with(SECOND.manifest, repeated=((1, 2),))
    lines = [msgspec.json.decode(line) for line in newest_lines(one, SECOND.frame, 1 << 20)]
    assert [(line["body"], line["seq"]) for line in lines] == [("d", 0), ("e", 2)]


def test_batches_that_no_queue_contains_yet_are_compared_with_pending_ones() -> None:
    unqueued = UnqueuedBatches(batches=(SECOND.manifest, THIRD.manifest))
    queues = (queued(FIRST), PendingSnapshot())
    first, second = leave_out_repeated(unqueued, queues, {}).batches
    assert first.repeated == ((1, 2),)
    assert second.repeated == ((0, 3),)
    plain = UnqueuedBatches(batches=(copy_with(THIRD.manifest, parts=msgspec.UNSET),))
    assert leave_out_repeated(plain, queues, {}) is plain


def test_batches_of_the_second_reading_of_the_queue_count_if_the_records_contain_them() -> None:
    """A batch that is enqueued between the two readings must not be left out as its own copy."""
    unqueued = UnqueuedBatches(batches=(SECOND.manifest,))
    queues = (PendingSnapshot(), queued(FIRST, SECOND))
    assert leave_out_repeated(unqueued, queues, {0: 0}) == unqueued
    (one,) = leave_out_repeated(unqueued, queues, {0: 1}).batches
    assert one.repeated == ((1, 2),)


def queued(*batches: Sent) -> PendingSnapshot:
    """Return a reading of the queue with one entry for each batch."""
    return PendingSnapshot(
        lanes=(0,),
        batches=tuple(
            PendingBatch(lane=0, sequence=sequence, position=0, manifest=batch.manifest)
            for sequence, batch in enumerate(batches, 1)
        ),
    )
