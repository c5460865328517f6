"""The stored bytes of the queue are pinned: a change is a new version."""

from pathlib import Path

from sluice_protocol.units import ObjectKey, UnixNs
from sluice_queue.register import (
    Draft,
    Register,
    Writer,
    append,
    decode_register,
    dequeue,
    encode_register,
    open_epoch,
)
from sluice_queue.register_client import decode_segment, spill

HERE = Path(__file__).parent
KEY = "queue/v1/spark.000/manifest"


def state() -> Register:
    """A register with a writer, an owner, acknowledged entries, and metadata."""
    drafts = tuple(
        Draft(
            location=ObjectKey(f"manifests/v1/date=2026-11-21/hour=02/{number:020d}.json"),
            size_bytes=1000 + number,
            batches=10 + number,
            frame_bytes=100_000 + number,
            first_accepted_at_ns=UnixNs(1_700_000_000_000_000_000 + number),
            last_accepted_at_ns=UnixNs(1_700_000_001_000_000_000 + number),
            ingested_at_ns=UnixNs(1_700_000_002_000_000_000 + number),
            metadata=bytes(range(number)),
        )
        for number in range(8)
    )
    nonce = bytes(range(16, 32))
    writer = Writer(producer_id=bytes(range(16)), counter=7, first_sequence=0)
    filled = append(Register(revision=41, nonce=nonce, layout=9), drafts, writer, nonce)
    return dequeue(KEY, open_epoch(filled, bytes(range(32, 48)), nonce), 2, nonce)


def test_register_bytes_are_those_of_version_3() -> None:
    pinned = bytes.fromhex((HERE / "register.hex").read_text())
    assert encode_register(state()) == pinned
    assert decode_register(KEY, pinned) == state()


def test_segment_bytes_are_those_of_version_2() -> None:
    pinned = bytes.fromhex((HERE / "segment.hex").read_text())
    moved = spill(KEY, state())
    assert moved.body == pinned
    assert [one.sequence for one in decode_segment(KEY, pinned)] == [3, 4, 5]
    assert len(pinned) == moved.ref.size_bytes
