"""The stored bytes of a lane's state are pinned: a change is a new version.

What is inside the zstd frame is pinned; the frame may differ between versions of the library.
"""

import pytest
import zstandard
from support.golden import golden

from sluice_protocol.errors import UnsupportedRecord
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import ObjectKey
from sluice_reconciler.lanes.enqueued import IntendedBatch
from sluice_reconciler.lanes.parts import decode_part, encode_part, key_of_boot, make_part
from sluice_reconciler.lanes.request_log import KnownRequest, decode_run, encode_run, run_of
from sluice_reconciler.lanes.sequence_ranges import BootRanges
from sluice_reconciler.lanes.state import (
    LaneRecord,
    OwnerClaim,
    PartReference,
    RequestRunReference,
    decode_lane,
    encode_lane,
    lane_key,
)

PRODUCER = "000102030405060708090a0b0c0d0e0f"
NONCE = "101112131415161718191a1b1c1d1e1f"


def ranges(*batches: tuple[int, int]) -> BootRanges:
    boot = BootRanges()
    for start, end in batches:
        boot.add(start, end)
    return boot


LIVES = {
    ("host-1", "b1"): ranges((0, 9), (10, 19), (30, 39)),
    ("host-1", "b2"): ranges((0, 2**40)),
    ("größe/1", "boot 1"): ranges((0, 9), (5, 7)),
}
RECORD = LaneRecord(
    queue="spark",
    lane=3,
    nonce=NONCE,
    producer_id=PRODUCER,
    owner_term=7,
    writes=41,
    pending=(IntendedBatch(agent_id="host-1", boot_id="b1", seq_start=40, seq_end=49),),
    recent=(IntendedBatch(agent_id="host-1", boot_id="b2", seq_start=2**40 + 1, seq_end=2**41),),
    runs=(
        (
            PartReference(
                name="0000000007-01ARZ3NDEKTSV4RRFFQ69G5FAV",
                sha256="ab" * 32,
                boots=3,
                first=1,
                last=2**64 - 1,
            ),
        ),
    ),
    ledger_since_unix_ns=1_700_000_000_123_456_789,
    settled_s=1_800_000_000,
    requests=(
        RequestRunReference(
            name="0000000007-01ARZ3NDEKTSV4RRFFQ69G5FAV",
            sha256="cd" * 32,
            requests=2,
            newest_s=1_700_000_000,
        ),
    ),
    owner=OwnerClaim(
        member="01ARZ3NDEKTSV4RRFFQ69G5FAV",
        url="http://10.0.0.3:8081",
        host="host-3",
        pid=4711,
        sharing=True,
        since_unix_ns=1_700_000_000_123_456_789,
    ),
    unsettled=(IntendedBatch(agent_id="host-2", boot_id="b9", seq_start=0, seq_end=9),),
)


def test_lane_state_is_pinned() -> None:
    raw = encode_record(RECORD)
    assert raw == golden("reconciler/lane.json", raw)
    assert zstandard.ZstdDecompressor().decompress(encode_lane(RECORD)) == raw
    assert decode_lane(lane_key(RECORD.of_lane), encode_lane(RECORD)) == RECORD


def test_requests_of_combined_batches_are_pinned() -> None:
    known = {
        bytes(range(16)): KnownRequest(batch=2**64 - 1, accepted_s=1_700_000_000),
        bytes(16): KnownRequest(batch=1, accepted_s=1_600_000_000),
    }
    body = encode_run(run_of(known))
    assert body == bytes.fromhex(golden("reconciler/requests.hex", body.hex().encode()).decode())
    for version in (0, 2):
        with pytest.raises(UnsupportedRecord, match="of run of requests"):
            decode_run("k", body[:4] + version.to_bytes(4, "little") + body[8:])
    found = decode_run("k", body)
    assert found.find(found.requests) == known


def test_part_is_pinned() -> None:
    made = encode_part(make_part(LIVES, 1_800_000_000))
    raw = zstandard.ZstdDecompressor().decompress(made)
    pinned = golden("reconciler/part.hex", raw.hex(" ", 16).encode() + b"\n")
    assert bytes.fromhex(pinned.decode()) == raw
    part = decode_part(ObjectKey("part"), zstandard.compress(raw))
    assert {life: part.find(key_of_boot(life)) for life in LIVES} == LIVES
    assert part.seen.tolist() == [1_800_000_000] * len(LIVES)
