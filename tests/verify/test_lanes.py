"""The check of lane registers accepts a correct history and finds each planted violation."""

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from verify.checking import build_checkers, check_history
from verify.registers import RegisterRecorder

from sluice_protocol.units import ObjectKey, UnixNs
from sluice_queue.register import (
    SEALED,
    Draft,
    Register,
    SegmentRef,
    encode_queue_entry,
    encode_register,
)

pytestmark = pytest.mark.s3  # Go builds the checkers, as it builds the S3 server


def entry(sequence: int, location: str = "manifests/v1/x") -> bytes:
    at = UnixNs(1)
    draft = Draft(
        location=ObjectKey(location), size_bytes=1, batches=1, frame_bytes=1,
        first_accepted_at_ns=at, last_accepted_at_ns=at, ingested_at_ns=at,
    )  # fmt: skip
    return encode_queue_entry(sequence, draft)


def state(revision: int, next_sequence: int, **fields: Any) -> Register:
    nonce = hashlib.sha256(f"{revision} {next_sequence} {sorted(fields)}".encode()).digest()[:16]
    return Register(revision=revision, nonce=nonce, next_sequence=next_sequence, **fields)


EMPTY = state(1, 1)
RIVAL = replace(EMPTY, nonce=bytes(16))
ONE = state(2, 2, count=1, entries=entry(1))
TWO = state(3, 3, count=2, entries=entry(1) + entry(2))
OTHER_TWO = replace(TWO, nonce=bytes(16), entries=entry(1) + entry(2, "manifests/v1/y"))
ACKED = state(4, 3, count=1, entries=entry(2), acked_through=1, epoch=1)
SPILLED = state(
    5, 4, count=1, entries=entry(3), acked_through=1, epoch=1,
    segments=(SegmentRef(first=2, last=2, size_bytes=100),),
)  # fmt: skip
Operation = dict[str, Any]


def read(start: int, end: int, found: Register | None) -> Operation:
    return {"call": "read", "start": start, "end": end, "found": found}


def write(
    start: int, end: int, expected: Register | str, new: Register, result: str = "applied"
) -> Operation:
    """A write; the result `unknown` leaves out its end."""
    given = {"start": start, "end": end, "expected": expected, "new": new}
    return {"call": "write", "result": result, **given}


CLEAN = [
    read(1, 2, None),
    write(3, 4, "", EMPTY),
    write(3, 5, "", RIVAL, "differs"),
    read(6, 7, EMPTY),
    write(8, 9, EMPTY, ONE, "unknown"),
    read(10, 11, ONE),
    write(12, 14, ONE, TWO),
    write(12, 15, ONE, OTHER_TWO, "differs"),
    read(16, 17, TWO),
    write(18, 19, TWO, ACKED),
    write(20, 21, ACKED, SPILLED),
    write(22, 23, TWO, replace(ACKED, nonce=bytes(16)), "unknown"),
    read(24, 25, SPILLED),
]


def harm(start: int, new: Register | None) -> Operation:
    return {"call": "harm", "start": start, "new": new, "result": "unknown"}


def sha256(one: Register) -> str:
    return hashlib.sha256(encode_register(one)).hexdigest()


def write_history(folder: Path, operations: list[Operation]) -> None:
    lines, written = list[tuple[int, dict[str, Any]]](), set[str]()

    def named(one: Register) -> dict[str, str]:
        body = base64.b64encode(encode_register(one)).decode()
        more = {} if body in written else {"body": body}
        written.add(body)
        return {"sha256": sha256(one), **more}

    for op, one in enumerate(operations, 1):
        begin = {"op": op, "event": "invoke", "call": one["call"], "register": "spark.000"}
        end: dict[str, Any] = {"op": op, "event": "ok"}
        if one["call"] == "read":
            found = one["found"]
            end |= {"result": "read", **named(found)} if found else {"result": "absent"}
        elif one["call"] == "harm":
            begin |= {"sha256": "", **(named(one["new"]) if one["new"] else {})}
        else:
            before = one["expected"]
            begin["expected"] = before if isinstance(before, str) else sha256(before)
            begin |= named(one["new"])
            end |= {"result": one["result"]}
        lines.append((one["start"], {**begin, "time": one["start"]}))
        if one.get("result") != "unknown":
            lines.append((one["end"], {**end, "time": one["end"]}))
    lines.sort(key=lambda pair: pair[0])
    text = "".join(json.dumps(line) + "\n" for _, line in lines)
    (folder / "registers.jsonl").write_text(text)


def changed(at: int, **fields: object) -> Callable[[], list[Operation]]:
    return lambda: [{**one, **fields} if n == at else one for n, one in enumerate(CLEAN)]


def rewritten(at: int, new: Register) -> Callable[[], list[Operation]]:
    """Another state is written, and read afterwards."""
    old = CLEAN[at]["new"]

    def make() -> list[Operation]:
        return [
            {name: new if value is old else value for name, value in one.items()} for one in CLEAN
        ]

    return make


NO_ORDER = "lane: no order explains the results"
PLANTED: dict[str, tuple[Callable[[], list[Operation]], str]] = {
    "two writers create it": (changed(2, result="applied"), NO_ORDER),
    "two writers replace one state": (changed(7, result="applied"), NO_ORDER),
    "a stale read": (changed(8, found=ONE), NO_ORDER),
    "a read before the write": (changed(3, found=ONE), NO_ORDER),
    "a read of nothing after a write": (changed(8, found=None), NO_ORDER),
    "a state that no write has made": (changed(8, found=OTHER_TWO), NO_ORDER),
    "a refused write that had an effect": (changed(6, result="differs"), NO_ORDER),
    "a refusal without a rival": (changed(9, result="differs"), NO_ORDER),
    "a success on a state that was replaced": (changed(11, result="applied"), NO_ORDER),
    "a write without a condition": (changed(9, expected="unconditional"), "lane: a write has no"),
    "a condition that the server never returned": (
        changed(9, expected='unknown "aa"'),
        "lane: a write names a state",
    ),
    "an entry that changes": (
        rewritten(9, replace(ACKED, acked_through=0, count=2, entries=entry(1) + entry(2, "y"))),
        "lane: a write loses or changes the entry 2",
    ),
    "an update that is lost": (
        rewritten(9, state(4, 2, count=1, entries=entry(1))),
        "lane: a write loses or changes the entry 2",
    ),
    "a revision that repeats": (rewritten(9, replace(ACKED, revision=3)), "lane: a write repeats"),
    "a nonce that repeats": (
        rewritten(9, replace(ACKED, nonce=TWO.nonce)),
        "lane: a write repeats",
    ),
    "an acknowledgement that is taken back": (
        rewritten(10, replace(SPILLED, acked_through=0, count=3, segments=(),
                              entries=entry(1) + entry(2) + entry(3))),
        "lane: a write moves a position backwards",
    ),
    "an epoch that is taken back": (
        rewritten(10, replace(SPILLED, epoch=0)),
        "lane: a write moves a position backwards",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def checkers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkers(tmp_path_factory.mktemp("checkers"))


def test_a_correct_history_has_no_violation(checkers: Path, tmp_path: Path) -> None:
    write_history(tmp_path, CLEAN)
    verdict = check_history(checkers, "lanes", tmp_path)
    assert verdict["violations"] == []
    assert (verdict["operations"], verdict["unknown"], verdict["identities"]) == (len(CLEAN), 2, 1)


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_write_may_take_effect_at_any_later_time(
    applied: bool, checkers: Path, tmp_path: Path
) -> None:
    late = write(20, 21, ACKED, SPILLED, "unknown")
    after = [read(22, 23, ACKED), read(24, 25, SPILLED if applied else ACKED)]
    write_history(tmp_path, [*CLEAN[:10], late, *after])
    assert check_history(checkers, "lanes", tmp_path)["violations"] == []


@pytest.mark.parametrize("harmed", [None, replace(TWO, epoch=9)])
def test_a_register_may_be_lost_or_damaged_by_a_fault(
    harmed: Register | None, checkers: Path, tmp_path: Path
) -> None:
    """What follows from it is not compared with it, but without the fault there is no order."""
    repaired = [read(21, 22, harmed), write(23, 24, harmed or "", EMPTY), read(25, 26, EMPTY)]
    write_history(tmp_path, [*CLEAN[:9], harm(20, harmed), *repaired])
    assert check_history(checkers, "lanes", tmp_path)["violations"] == []
    write_history(tmp_path, [*CLEAN[:9], *repaired])
    assert check_history(checkers, "lanes", tmp_path)["violations"] != []


def test_a_change_of_lanes_ends_the_epochs_of_consumers(checkers: Path, tmp_path: Path) -> None:
    consumed = replace(EMPTY, revision=2, nonce=bytes([7] * 16), epoch=3)
    sealed = replace(consumed, revision=3, nonce=bytes([8] * 16), layout=SEALED, epoch=0)
    writes = [write(1, 2, "", EMPTY), write(3, 4, EMPTY, consumed), write(5, 6, consumed, sealed)]
    write_history(tmp_path, writes)
    assert check_history(checkers, "lanes", tmp_path)["violations"] == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str, checkers: Path, tmp_path: Path) -> None:
    make, problem = PLANTED[name]
    write_history(tmp_path, make())
    violations = check_history(checkers, "lanes", tmp_path)["violations"]
    assert any(line.startswith(problem) for line in violations), violations


def test_a_state_that_cannot_be_decoded_is_found(checkers: Path, tmp_path: Path) -> None:
    write_history(tmp_path, CLEAN)
    text = (tmp_path / "registers.jsonl").read_text()
    body = base64.b64encode(encode_register(TWO)).decode()
    damaged = base64.b64encode(encode_register(TWO)[:-1]).decode()
    (tmp_path / "registers.jsonl").write_text(text.replace(body, damaged))
    violations = check_history(checkers, "lanes", tmp_path)["violations"]
    assert any("a register cannot be decoded" in line for line in violations)


def test_a_run_without_a_server_has_no_registers(checkers: Path, tmp_path: Path) -> None:
    assert check_history(checkers, "lanes", tmp_path)["operations"] == 0


@pytest.mark.parametrize(
    ("version", "calls"), [("v1", ["write"] * 2), ("v2", ["write"] * 2 + ["harm"])]
)
def test_the_removal_of_a_replaced_version_is_no_harm(
    version: str, calls: list[str], tmp_path: Path
) -> None:
    """An erasure removes noncurrent versions; hundreds of harms made the search endless."""
    path = "/verify/deep/queue/v1/spark.000/manifest"
    recorder = RegisterRecorder(tmp_path)
    for number in (1, 2):
        request = make_mocked_request("PUT", path, headers={"If-Match": f"e{number - 1}"})
        answer = web.Response(headers={"ETag": f"e{number}", "x-amz-version-id": f"v{number}"})
        recorder.end(recorder.begin(request, b"state"), answer, b"state", request)
    recorder.begin(make_mocked_request("DELETE", f"{path}?versionId={version}"), b"")
    recorder.close()
    lines = map(json.loads, (tmp_path / "registers.jsonl").read_text().splitlines())
    assert [one["call"] for one in lines if one["event"] == "invoke"] == calls
