"""Checks recorded runs: what callers asked and were told, with unknown outcomes as "perhaps".

An identity is a write-once register, so its check is linear. The queue's register is checked by
search for an order that explains every answer (Wing and Gong, with Lowe's memo of seen states).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One upload and its answer; `status` 0 means that no answer came.

    Times are any rising numbers: `asked` when the request was sent, `told` when the answer came.
    """

    identity: str
    digest: str
    asked: float
    told: float
    status: int
    duplicate: bool | None = None
    gateway_died: bool = False


def wrong_in(history: Sequence[Told]) -> list[str]:
    """Gives every promise of acceptance that the history breaks: I1, I3 and I4, per identity."""
    by_identity: dict[str, list[Told]] = {}
    for entry in history:
        by_identity.setdefault(entry.identity, []).append(entry)
    return [line for name in sorted(by_identity) for line in _wrong_of(name, by_identity[name])]


def _wrong_of(identity: str, entries: list[Told]) -> list[str]:
    accepted = [entry for entry in entries if entry.status == 200]
    owners = {entry.digest for entry in accepted}
    wrong = []
    if len(owners) > 1:
        wrong.append(f"I1 {identity}: accepted with {sorted(owners)}")
    for entry in entries:
        if entry.status == 409 and owners == {entry.digest}:
            wrong.append(f"I3 {identity}: 409 for the owner {entry.digest}")
        if entry.status == 409 and not _other_asked(entries, entry):
            wrong.append(f"I3 {identity}: 409 before any other bytes were sent")
    fresh = [entry for entry in accepted if entry.duplicate is False]
    if len(fresh) > 1:
        wrong.append(f"I4 {identity}: duplicate=false {len(fresh)} times")
    early = [e for e in accepted if e.duplicate and not _same_asked(entries, e)]
    return wrong + [f"I4 {identity}: duplicate=true before anyone else sent the bytes"] * len(early)


def _other_asked(entries: list[Told], conflict: Told) -> bool:
    return any(e.digest != conflict.digest and e.asked < conflict.told for e in entries)


def _same_asked(entries: list[Told], duplicate: Told) -> bool:
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
        end: When it returned; None when nobody knows: it may take effect later, or never.
        apply: Gives the state after it, or None when its answer does not fit that state.
    """

    name: str
    start: float
    end: float | None
    apply: Callable[[S], S | None]


def linearizable(initial: S, operations: Sequence[Operation[S]]) -> bool:
    """Tells whether some order explains every answer, with nothing overtaking what ended before."""
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
