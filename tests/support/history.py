"""Checks of recorded runs: the calls and their results, with an unknown outcome as "perhaps".

An identity is a write-once register, so its check is linear. The queue's register is checked by a
search for an order that explains every result (Wing and Gong, with Lowe's memo of seen states).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadResult:
    """One upload and its response; `status` 0 means that no response arrived.

    Times are any increasing numbers: `asked` when the request was sent, `told` when the response
    arrived.
    """

    identity: str
    digest: str
    asked: float
    told: float
    status: int
    duplicate: bool | None = None
    gateway_died: bool = False


def broken_guarantees(history: Sequence[UploadResult]) -> list[str]:
    """Return every guarantee of acceptance that the history breaks: I1, I3 and I4, per identity."""
    by_identity: dict[str, list[UploadResult]] = {}
    for entry in history:
        by_identity.setdefault(entry.identity, []).append(entry)
    return [line for name in sorted(by_identity) for line in _broken_of(name, by_identity[name])]


def _broken_of(identity: str, entries: list[UploadResult]) -> list[str]:
    accepted = [entry for entry in entries if entry.status == 200]
    owners = {entry.digest for entry in accepted}
    wrong = []
    if len(owners) > 1:
        wrong.append(f"I1 {identity}: accepted with {sorted(owners)}")
    for entry in entries:
        if entry.status == 409 and owners == {entry.digest}:
            wrong.append(f"I3 {identity}: 409 for the owner {entry.digest}")
        if entry.status == 409 and not _other_bytes_sent(entries, entry):
            wrong.append(f"I3 {identity}: 409 before any other bytes were sent")
    fresh = [entry for entry in accepted if entry.duplicate is False]
    if len(fresh) > 1:
        wrong.append(f"I4 {identity}: duplicate=false {len(fresh)} times")
    early = [e for e in accepted if e.duplicate and not _same_bytes_sent(entries, e)]
    return wrong + [f"I4 {identity}: duplicate=true before another sender sent the bytes"] * len(
        early
    )


def _other_bytes_sent(entries: list[UploadResult], conflict: UploadResult) -> bool:
    return any(e.digest != conflict.digest and e.asked < conflict.told for e in entries)


def _same_bytes_sent(entries: list[UploadResult], duplicate: UploadResult) -> bool:
    return any(
        e is not duplicate and e.digest == duplicate.digest and e.asked < duplicate.told
        for e in entries
    )


S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[S]):
    """One call on a shared object.

    Attributes:
        name: For messages.
        start: When it was called.
        end: When it returned; None for an unknown outcome: it may take effect later, or never.
        apply: Returns the state after it, or None when its result does not fit that state.
    """

    name: str
    start: float
    end: float | None
    apply: Callable[[S], S | None]


def linearizable(initial: S, operations: Sequence[Operation[S]]) -> bool:
    """Return True if some order explains every result and no call overtakes one that ended before
    it.
    """
    seen: set[tuple[frozenset[int], S]] = set()

    def search(done: frozenset[int], state: S) -> bool:
        open_ones = [i for i in range(len(operations)) if i not in done]
        if all(operations[i].end is None for i in open_ones):
            return True
        if (done, state) in seen:
            return False
        seen.add((done, state))
        ends = [end for i in open_ones if (end := operations[i].end) is not None]
        for i in open_ones:
            if operations[i].start > min(ends):
                continue
            after = operations[i].apply(state)
            if after is not None and search(done | {i}, after):
                return True
        return False

    return search(frozenset(), initial)
