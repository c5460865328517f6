"""The check of `sluice verify` accepts a correct history and finds each planted violation."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sluice_cli.verify.checks import UploadTry, find_violations, read_uploads
from sluice_cli.verify.state import Gap, Manifest, Row, RunState


def upload(
    sha256: str, result: str, start: int, *, at: str = "0-1", payload: str = "p1"
) -> UploadTry:
    return UploadTry(
        identity=f"a/b/{at}", sha256=sha256, payload=payload, records=2, result=result,
        start_ns=start, end_ns=None if result == "unknown" else start + 5,
    )  # fmt: skip


UPLOADS = [
    upload("aa", "unknown", 0),
    upload("bb", "conflict", 10, payload="p2"),
    upload("aa", "duplicate", 20),
    upload("cc", "refused", 30, at="4-5", payload="p3"),
    upload("cc", "new", 40, at="4-5", payload="p3"),
    upload("dd", "unknown", 50, at="6-7", payload="p4"),
]
STATE = RunState(
    manifests=(
        Manifest(kind="manifest", identity="a/b/0-1", sha256="aa", blob="aa"),
        Manifest(kind="manifest", identity="a/b/4-5", sha256="cc", blob="cc"),
        Manifest(kind="quarantine", identity="a/b/0-1", sha256="bb", blob="bb"),
    ),
    gaps=(Gap(agent="a", boot="b", from_=2, to=3),),
    rows=tuple(
        Row(agent="a", boot="b", seq=seq, body=body)
        for seq, body in ((0, "p1 0"), (1, "p1 1"), (4, "p3 0"), (5, "p3 1"))
    ),
    reasons=(),
)


def broken(uploads: list[UploadTry], state: RunState) -> list[str]:
    return list(find_violations(uploads, state))


def test_a_correct_history_has_no_violation() -> None:
    assert broken(UPLOADS, STATE) == []


def test_records_that_could_not_be_read_are_not_compared() -> None:
    assert broken(UPLOADS, replace(STATE, rows=None)) == []


def changed(at: int, **fields: object) -> list[UploadTry]:
    return [replace(one, **fields) if at == n else one for n, one in enumerate(UPLOADS)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uploads", "problem"),
    [
        ([*UPLOADS, upload("aa", "new", 60), upload("aa", "new", 70)], "two tries were accepted"),
        (changed(1, result="new"), "does not fit"),
        (changed(2, result="conflict"), "does not fit"),
        (changed(0, start_ns=16), "precedes the upload"),
        (changed(4, start_ns=90), ""),
        ([*UPLOADS, upload("cc", "duplicate", 30, at="4-5")], "precedes the upload"),
        (UPLOADS[:4], "its owner was not sent"),
        ([*UPLOADS[:5], upload("dd", "conflict", 50, at="6-7")], "a result without an owner"),
    ],
)
def test_a_result_that_no_order_explains_is_found(uploads: list[UploadTry], problem: str) -> None:
    found = [line for line in broken(uploads, STATE) if line.startswith("register: ")]
    assert len(found) == bool(problem)
    assert all(problem in line for line in found)


def without(kind: str, at: int) -> Callable[[RunState], RunState]:
    def change(state: RunState) -> RunState:
        some = list(getattr(state, kind))
        del some[at]
        return replace(state, **{kind: tuple(some)})

    return change


def swapped(kind: str, at: int, **fields: object) -> Callable[[RunState], RunState]:
    def change(state: RunState) -> RunState:
        some = list(getattr(state, kind))
        some[at] = replace(some[at], **fields)
        return replace(state, **{kind: tuple(some)})

    return change


def doubled(state: RunState) -> RunState:
    assert state.rows
    return replace(state, rows=(*state.rows, state.rows[0]))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without("manifests", 1), "register: a result does not fit"),
        (without("manifests", 2), "conflict: refused bytes are not in quarantine"),
        (swapped("manifests", 0, blob=""), "blob: it is missing or damaged, manifest"),
        (swapped("manifests", 2, blob="cc"), "blob: it is missing or damaged, quarantine"),
        (swapped("manifests", 2, identity="a/b/4-5"), "conflict: quarantine has bytes without"),
        (swapped("manifests", 1, identity="a/b/8-9"), "receipt: no client sent the batch"),
        (without("gaps", 0), "gap: the number is not reported"),
        (swapped("gaps", 0, to=4), "gap: the number is reported as missing"),
        (without("rows", 2), "once: an accepted record is found 0 times"),
        (doubled, "once: an accepted record is found 2 times"),
        (swapped("rows", 0, body="p2 0"), "once: a record is found that was not accepted"),
        (swapped("rows", 0, seq=1), "once: a record is found that was not accepted"),
    ],
)
def test_a_planted_violation_is_found(change: Callable[[RunState], RunState], problem: str) -> None:
    assert any(line.startswith(problem) for line in broken(UPLOADS, change(STATE)))


def test_a_history_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    """A try without an end has an unknown outcome, and other calls are left out."""
    (tmp_path / "history.jsonl").write_text(
        '{"client": 1, "op": 1, "event": "invoke", "call": "upload", "time": 3,'
        ' "identity": "a/b/0-1", "sha256": "aa", "payload": "p1", "records": 2}\n'
        '{"client": 1, "op": 2, "event": "invoke", "call": "query", "time": 4, "from": 0}\n'
        '{"client": 1, "op": 2, "event": "ok", "time": 5, "seen": []}\n'
    )
    assert read_uploads(tmp_path / "history.jsonl") == [
        replace(upload("aa", "unknown", 3), end_ns=None)
    ]
