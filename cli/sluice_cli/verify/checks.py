"""Compare a history with the state after it: the promises of acceptance, as a pure function.

The programs in Go in tests/verify/checkers decide the same without any code of sluice. A test
compares the check of the register with theirs on random histories.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice_cli.verify.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTry:
    """One try: `result` is new, duplicate, conflict, refused, or unknown without an end."""

    identity: str
    sha256: str
    payload: str
    records: int
    result: str
    start_ns: int
    end_ns: int | None


class _Event(msgspec.Struct, frozen=True):
    """A line of history.jsonl."""

    op: int
    event: str
    time: int
    call: str = ""
    identity: str = ""
    sha256: str = ""
    payload: str = ""
    records: int = 0
    result: str = ""


def read_uploads(path: Path) -> list[UploadTry]:
    """Read the uploads of history.jsonl; a try without an end is unknown."""
    begun: dict[int, _Event] = {}
    ended: dict[int, _Event] = {}
    for event in msgspec.json.Decoder(_Event).decode_lines(path.read_bytes()):
        if event.event == "invoke":
            begun[event.op] = event
        elif event.event != "unknown":
            ended[event.op] = event
    return [_upload(one, ended.get(op)) for op, one in begun.items() if one.call == "upload"]


def _upload(begun: _Event, end: _Event | None) -> UploadTry:
    return UploadTry(
        identity=begun.identity,
        sha256=begun.sha256,
        payload=begun.payload,
        records=begun.records,
        result="unknown" if end is None else end.result,
        start_ns=begun.time,
        end_ns=None if end is None else end.time,
    )


def find_violations(uploads: Iterable[UploadTry], state: RunState) -> Iterator[str]:
    """Yield each broken promise as one line."""
    by_identity = defaultdict[str, list[UploadTry]](list)
    for one in uploads:
        by_identity[one.identity].append(one)
    owners = {one.identity: one.sha256 for one in state.manifests if one.kind == "manifest"}
    for identity, tries in by_identity.items():
        problem = check_register(tries, owners.get(identity, ""))
        if problem:
            yield f"register: {problem}, identity={identity}"
    yield from _check_blobs(by_identity, owners, state)
    yield from _check_conflicts(by_identity, owners, state)
    yield from _check_gaps(owners, state)
    if state.rows is not None:
        yield from _check_rows(by_identity, owners, state)


def check_register(tries: Iterable[UploadTry], owner: str) -> str:
    """Return why no order of the tries explains their results, or an empty text.

    The register of an identity is written once, and `owner` is what it contains at the end, empty
    for nothing. The write is the try with the result `new`, or else one with an unknown outcome,
    and each duplicate or conflict ended after it began.
    """
    tries = list(tries)
    new = [one for one in tries if one.result == "new"]
    seen = [one for one in tries if one.result in {"duplicate", "conflict"}]
    if len(new) > 1:
        return "two tries were accepted as new"
    if any((one.result == "conflict") == (one.sha256 == owner) for one in seen) or any(
        one.sha256 != owner for one in new
    ):
        return "a result does not fit the bytes that own it"
    if not owner:
        return "a result without an owner" if seen else ""
    writes = new or [one for one in tries if one.result == "unknown" and one.sha256 == owner]
    if not writes:
        return "its owner was not sent"
    first_end_ns = min((one.end_ns for one in seen if one.end_ns is not None), default=None)
    if first_end_ns is not None and min(one.start_ns for one in writes) > first_end_ns:
        return "a result precedes the upload that it depends on"
    return ""


Tries = dict[str, list[UploadTry]]


def _check_blobs(tries: Tries, owners: dict[str, str], state: RunState) -> Iterator[str]:
    for one in state.manifests:
        if one.blob != one.sha256:
            yield f"blob: it is missing or damaged, {one.kind} of identity={one.identity}"
    for identity in owners.keys() - tries.keys():
        yield f"receipt: no client sent the batch, identity={identity}"


def _check_conflicts(tries: Tries, owners: dict[str, str], state: RunState) -> Iterator[str]:
    refused = {(one.identity, one.sha256) for one in state.manifests if one.kind == "quarantine"}
    sent = {(one.identity, one.sha256): one for some in tries.values() for one in some}
    for some in tries.values():
        for one in some:
            if one.result == "conflict" and (one.identity, one.sha256) not in refused:
                yield f"conflict: refused bytes are not in quarantine, identity={one.identity}"
    for identity, sha256 in refused:
        if (identity, sha256) not in sent or owners.get(identity) == sha256:
            yield f"conflict: quarantine has bytes without a conflict, identity={identity}"


def _range_of(identity: str) -> tuple[str, range]:
    boot, _, numbers = identity.rpartition("/")
    first, _, last = numbers.partition("-")
    return boot, range(int(first), int(last) + 1)


def _check_gaps(owners: dict[str, str], state: RunState) -> Iterator[str]:
    accepted = defaultdict[str, set[int]](set)
    for identity in owners:
        boot, numbers = _range_of(identity)
        accepted[boot].update(numbers)
    reported = defaultdict[str, set[int]](set)
    for gap in state.gaps:
        reported[f"{gap.agent}/{gap.boot}"].update(range(gap.from_, gap.to + 1))
    for boot in accepted.keys() | reported.keys():
        missing = set(range(max(accepted[boot], default=0))) - accepted[boot]
        for number in sorted(missing ^ reported[boot]):
            kind = "not reported" if number in missing else "reported"
            yield f"gap: the number is {kind} as missing, place={boot}/{number}"


def _check_rows(tries: Tries, owners: dict[str, str], state: RunState) -> Iterator[str]:
    due: dict[tuple[str, int], str] = {}
    for identity, some in tries.items():
        boot, numbers = _range_of(identity)
        for one in some:
            if owners.get(identity) == one.sha256:
                for index, number in enumerate(numbers):
                    due[boot, number] = f"{one.payload} {index}"
    found = Counter((f"{row.agent}/{row.boot}", row.seq, row.body) for row in state.rows or ())
    for (boot, number), body in due.items():
        count = found.pop((boot, number, body), 0)
        if count != 1:
            yield f"once: an accepted record is found {count} times, place={boot}/{number}"
    for boot, number, _ in found:
        yield f"once: a record is found that was not accepted, place={boot}/{number}"
