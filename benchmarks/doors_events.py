"""Benchmark `doors_events`: bodies of Fluent and Splunk to the columns of a frame, per CPU second.

Each subject is the decoder of a door. Its control reads the same body with the same library, in a
plain loop that builds the same columns, with no limit and no care for damage. All run in turn in
one process.

    python -m benchmarks.doors_events [RECORDS] [ROUNDS]
"""

import json
import random
import sys
from collections.abc import Callable, Iterator
from typing import Final

import msgpack

from benchmarks.measure import Sample, interleave, ratio, report, timed
from sluice_doors.decoded import DecodedRecords, content_digest
from sluice_doors.forward.messages import TAG_KEY, decode_forward
from sluice_doors.json.hec import decode_events
from sluice_protocol.records import LogRecord, logs_from_records

RATIO_MIN: Final = 0.3
REPEATS: Final = 10
NOW_NS: Final = 1_763_769_600_000_000_000
NS_PER_S: Final = 1_000_000_000
BYTES_MAX: Final = 1 << 30


def rows(records: int) -> Iterator[dict[str, str]]:
    """Yield records as Fluent Bit reads them from the logs of containers."""
    rng = random.Random(3)
    for _ in range(records):
        yield {
            "log": f"GET /api/v1/items/{rng.randrange(10**6)} took {rng.random():.4f} ms",
            "stream": "stdout",
            "pod": f"shop-{rng.randrange(100)}",
            "namespace": "shop",
        }


def packed(records: int) -> bytes:
    """Return a message in the mode PackedForward."""
    entries = bytearray()
    for number, row in enumerate(rows(records)):
        time = NOW_NS // NS_PER_S << 32 | number
        entries += msgpack.packb([msgpack.ExtType(0, time.to_bytes(8, "big")), row])
    return bytes(msgpack.packb(["shop", bytes(entries), {"size": records, "chunk": "c"}]))


def events(records: int) -> bytes:
    """Return events of Splunk without whitespace between them."""
    lines = (
        {"time": NOW_NS // NS_PER_S + number / 1_000, "host": "web-1", "event": row}
        for number, row in enumerate(rows(records))
    )
    return "".join(map(json.dumps, lines)).encode()


def record(ts_ns: int, row: dict[str, str]) -> LogRecord:
    """Return a record of one row, which is changed."""
    return LogRecord(ts_ns=ts_ns, body=row.pop("log"), attributes=row)


def made(found: list[LogRecord], resource: tuple[tuple[str, str], ...]) -> DecodedRecords:
    """Return the columns of records."""
    columns = logs_from_records(found)
    return DecodedRecords(columns=columns, resource=resource, timed=True, unreadable=0)


def fluent_loop(body: bytes) -> DecodedRecords:
    """Decode PackedForward in a plain loop: the control."""
    tag, entries, _ = msgpack.unpackb(body)
    unpacker = msgpack.Unpacker()
    unpacker.feed(entries)
    found = []
    for time, row in unpacker:
        seconds, ns = divmod(int.from_bytes(time.data, "big"), 1 << 32)
        found.append(record(seconds * NS_PER_S + ns, row))
    return made(found, ((TAG_KEY, tag),))


def splunk_loop(body: bytes) -> DecodedRecords:
    """Decode events in a plain loop: the control."""
    text, place, found, host = body.decode(), 0, [], ""
    decoder = json.JSONDecoder()
    while place < len(text):
        one, place = decoder.raw_decode(text, place)
        host = one["host"]
        found.append(record(round(one["time"] * 1_000) * 1_000_000, one["event"]))
    return made(found, (("host.name", host),))


def fluent(body: bytes) -> DecodedRecords:
    """Decode with the door of Fluent."""
    (found,) = decode_forward(body, received_ns=NOW_NS, bytes_max=BYTES_MAX)
    return found


def splunk(body: bytes) -> DecodedRecords:
    """Decode with the door of Splunk."""
    (found,) = decode_events(body, received_ns=NOW_NS)
    return found


def main(records: int = 5_000, rounds: int = 7) -> int:
    """Run the benchmark; return 1 if a ratio is below the bar."""
    groups = (
        ("forward", fluent, "forward control", fluent_loop, packed(records)),
        ("hec", splunk, "hec control", splunk_loop, events(records)),
    )

    def running(decode: Callable[[bytes], DecodedRecords], body: bytes) -> Callable[[], Sample]:
        def work() -> float:
            for _ in range(REPEATS):
                decode(body)
            return float(REPEATS * len(body))

        return lambda: timed(work)

    subjects: dict[str, Callable[[], Sample]] = {}
    for name, decode, control, loop, body in groups:
        if content_digest(decode(body)) != content_digest(loop(body)):
            raise SystemExit(f"the results differ, door={name}")
        subjects |= {name: running(decode, body), control: running(loop, body)}
    samples = interleave(subjects, rounds=rounds)
    shown, worst = [], RATIO_MIN
    for name, _, control, _, body in groups:
        low, middle, high = ratio(samples[name], samples[control], lambda one: 1 / one.cpu_per_unit)
        worst = min(worst, middle)
        per_s = sorted(1 / one.cpu_per_unit for one in samples[name])[rounds // 2]
        shown.append(
            f"{name}: {per_s / 1e6:.1f} MB and {per_s / len(body) * records:,.0f} records"
            f" per CPU second, {middle:.2f} x the control ({low:.2f} to {high:.2f})"
        )
    report("doors_events", shown, samples)
    return int(worst < RATIO_MIN)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
