"""What the spool remembers of batches that are gone: positions and high water.

It is the fold of every entry up to `through`. Recovery folds the later entries that still stand
over it, so an entry may be removed only once a durable state covers it.

Source: ADR 0030.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from sluice_agent.entry import FORMAT_VERSION, FileMark, Note
from sluice_agent.errors import CorruptEntry

_DIGEST_CHARS: Final = 64


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of all entries sealed so far.

    Attributes:
        version: Of this format, 1.
        through: The highest order folded in; 0 before the first.
        marks: The latest mark of each file.
        high_water: The highest sequence number sealed, by boot id.
    """

    version: int = FORMAT_VERSION
    through: int = 0
    marks: Mapping[str, FileMark] = msgspec.field(default_factory=dict)
    high_water: Mapping[str, int] = msgspec.field(default_factory=dict)


def fold_note(state: State, note: Note) -> State:
    """Folds one entry in; an entry that is already covered changes nothing."""
    if note.order <= state.through:
        return state
    high = max(note.seq_end, state.high_water.get(note.boot_id, note.seq_end))
    return State(
        through=note.order,
        marks={**state.marks, **{mark.source: mark for mark in note.marks}},
        high_water={**state.high_water, note.boot_id: high},
    )


def prune_state(state: State, *, boots: Iterable[str], sources_gone: Iterable[str]) -> State:
    """Drops what nobody will ask for again.

    Args:
        state: The state.
        boots: The boots that still have batches, and the running one.
        sources_gone: Files that are read to their end and are no longer there.
    """
    kept, gone = frozenset(boots), frozenset(sources_gone)
    return State(
        through=state.through,
        marks={source: mark for source, mark in state.marks.items() if source not in gone},
        high_water={boot: high for boot, high in state.high_water.items() if boot in kept},
    )


def encode_state(state: State) -> bytes:
    """Gives the file's bytes: JSON, a newline, the sha256 of the JSON in hex."""
    body = msgspec.json.encode(state, order="sorted")
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def decode_state(body: bytes) -> State:
    """Reads the file's bytes.

    Raises:
        CorruptEntry: They are not those that were written.
    """
    text, _, digest = body.rstrip(b"\n").rpartition(b"\n")
    if len(digest) != _DIGEST_CHARS or hashlib.sha256(text).hexdigest().encode() != digest:
        raise CorruptEntry("the state's digest does not match")
    try:
        return msgspec.json.decode(text, type=State)
    except msgspec.DecodeError as error:
        raise CorruptEntry("the state is not of this version") from error
