"""Matching the index entries that sources define with the entries that exist, in bounded memory.

An entry is right if its key and its bytes are exactly what its source defines. It is therefore
reduced to a fact: a hash of its key and a hash of its bytes. Sources and entries are read in any
order. Their facts are divided by their first bits and matched part by part. Beyond
`memory_bytes_max` they are moved to a temporary file without a name, which grows by 23 bytes per
fact and ends with the process.

What has no counterpart is only suspected: the caller reads it again before it reports anything. It
is found again by its place: a few bits of a hash of the key under which it was read.
"""

import hashlib
import struct
import tempfile
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import IO, Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import ObjectKey

MEMORY_BYTES_MAX: Final = 64 << 20
PARTS: Final = 4096
PLACES: Final = 1 << 16
SUSPECTS_MAX: Final = 500_000
"""Facts that are remembered as suspected; beyond them, everything at a suspected place is."""

_KEY_BYTES: Final = 12
_BODY_BYTES: Final = 8
"""Two different bodies of one key have equal hashes with a probability of 2**-64."""

_RECORD: Final = struct.Struct(f"<BH{_KEY_BYTES + _BODY_BYTES}s")


class _Side(IntEnum):
    """Where a fact was read."""

    DEFINED = 0
    """A source defines the entry."""
    FOUND = 1
    """The entry exists."""
    SUBSTITUTE_DEFINED = 2
    """If this other entry exists, the entry may be missing."""
    SUBSTITUTE_FOUND = 3


class Suspects:
    """The facts without a counterpart, and the places where they were read."""

    def __init__(self, suspects_max: int) -> None:
        self._max = suspects_max
        self._places: set[int] = set()
        self._facts: set[bytes] | None = set()

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, place: int, fact: bytes) -> None:
        """Add one fact that was read at a place."""
        self._places.add(place)
        if self._facts is not None:
            self._facts.add(fact)
            if len(self._facts) > self._max:
                self._facts = None

    def may_be_at(self, key: ObjectKey) -> bool:
        """Return True if a suspected fact may have been read under this key."""
        return _place_of(key) in self._places

    def may_contain(self, key: ObjectKey, body: bytes) -> bool:
        """Return True if this entry may be suspected; an entry that is suspected always is."""
        return self._facts is None or fact_of(key, body) in self._facts


class Unmatched:
    """What was defined and not found, and what was found and not defined, by index."""

    def __init__(self, suspects_max: int) -> None:
        self._max = suspects_max
        self.defined: dict[int, Suspects] = {}
        self.found: dict[int, Suspects] = {}

    def add(self, side: _Side, index: int, place: int, fact: bytes) -> None:
        """Add one fact of one side."""
        suspects = self.defined if side is _Side.DEFINED else self.found
        suspects.setdefault(index, Suspects(self._max)).add(place, fact)


class EntryJoin:
    """The facts of both sides; close it to remove the temporary file."""

    def __init__(
        self,
        *,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        parts: int = PARTS,
        suspects_max: int = SUSPECTS_MAX,
    ) -> None:
        """Create an empty join.

        Args:
            memory_bytes_max: Size of the facts in memory, beyond which they are to be moved.
            parts: Number of parts that are matched one after the other, at most 65 536.
            suspects_max: Number of suspected facts that are remembered, per index and side.
        """
        self._memory_bytes_max = memory_bytes_max
        self._suspects_max = suspects_max
        self._parts = [bytearray() for _ in range(parts)]
        self._moved: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
        self._in_memory = 0
        self._file: IO[bytes] | None = None

    def define(self, index: int, source: ObjectKey, key: ObjectKey, body: bytes) -> None:
        """Add an entry that a source defines."""
        self._add(_Side.DEFINED, index, source, fact_of(key, body))

    def find(self, index: int, key: ObjectKey, body: bytes) -> None:
        """Add an entry that exists."""
        self._add(_Side.FOUND, index, key, fact_of(key, body))

    def define_substitute(self, key: ObjectKey, substitute: ObjectKey) -> None:
        """Add a defined entry that may be missing if a substitute of it exists."""
        self._add(_Side.SUBSTITUTE_DEFINED, 0, key, fact_of(key, substitute.encode()))

    def find_substitute(self, key: ObjectKey, substitute: ObjectKey) -> None:
        """Add a substitute that exists, for the entry with this key."""
        self._add(_Side.SUBSTITUTE_FOUND, 0, key, fact_of(key, substitute.encode()))

    def _add(self, side: _Side, index: int, at: ObjectKey, fact: bytes) -> None:
        part = self._parts[(fact[0] | fact[1] << 8) % len(self._parts)]
        part += _RECORD.pack(side << 4 | index, _place_of(at), fact)
        self._in_memory += _RECORD.size

    @property
    def is_full(self) -> bool:
        """Whether `move` is due."""
        return self._in_memory >= self._memory_bytes_max

    def move(self) -> None:
        """Move the facts in memory to the temporary file. This blocks.

        Raises:
            BadUsage: The file cannot be written.
        """
        try:
            if self._file is None:
                # `close` closes it: it is open as long as the join.
                self._file = tempfile.TemporaryFile(prefix="sluice-rebuild-")  # noqa: SIM115
            at = self._file.seek(0, 2)
            for part, moved in zip(self._parts, self._moved, strict=True):
                if part:
                    self._file.write(part)
                    moved.append((at, len(part)))
                    at += len(part)
                    part.clear()
            self._file.flush()
        except OSError as error:
            raise BadUsage(
                f"cannot write temporary file: {error.strerror}; set TMPDIR to a folder with 200"
                f" bytes of space per batch, folder=`{tempfile.gettempdir()}`"
            ) from error
        self._in_memory = 0

    def match(self) -> Unmatched:
        """Return every fact of one side without a counterpart. This blocks.

        A defined entry is suspected too if an entry with its key and other bytes exists, even if
        the right one exists as well.

        Raises:
            BadUsage: The temporary file cannot be read.
        """
        unmatched = Unmatched(self._suspects_max)
        for number in range(len(self._parts)):
            sides: tuple[dict[bytes, int], ...] = ({}, {}, {}, {})
            for tag, place, fact in _RECORD.iter_unpack(self._records_of(number)):
                sides[tag >> 4][fact] = (tag & 15) * PLACES + place
            defined, found, substitutes_defined, substitutes_found = sides
            extra = found.keys() - defined.keys()
            missing = defined.keys() - found.keys()
            if missing:
                replaced = substitutes_defined.keys() & substitutes_found.keys()
                keys = {fact[:_KEY_BYTES] for fact in replaced}
                missing = {fact for fact in missing if fact[:_KEY_BYTES] not in keys}
            if extra:
                keys = {fact[:_KEY_BYTES] for fact in extra}
                missing |= {fact for fact in defined if fact[:_KEY_BYTES] in keys}
            for fact in missing:
                unmatched.add(_Side.DEFINED, *divmod(defined[fact], PLACES), fact)
            for fact in extra:
                unmatched.add(_Side.FOUND, *divmod(found[fact], PLACES), fact)
        return unmatched

    def _records_of(self, number: int) -> bytes:
        return b"".join([*self._read_moved(self._moved[number]), self._parts[number]])

    def _read_moved(self, moved: list[tuple[int, int]]) -> Iterator[bytes]:
        if self._file is None:
            return
        for at, size_bytes in moved:
            try:
                self._file.seek(at)
                body = self._file.read(size_bytes)
            except OSError as error:
                raise BadUsage(f"cannot read temporary file: {error.strerror}") from error
            if len(body) != size_bytes:
                raise BadUsage("cannot read temporary file: it was cut short; repeat the command")
            yield body

    def close(self) -> None:
        """Remove the temporary file."""
        if self._file is not None:
            self._file.close()


def fact_of(key: ObjectKey, body: bytes) -> bytes:
    """Return 20 bytes that identify an entry with exactly these bytes, those of its key first."""
    of_key = hashlib.blake2b(key.encode(), digest_size=_KEY_BYTES).digest()
    return of_key + hashlib.blake2b(body, digest_size=_BODY_BYTES).digest()


def _place_of(key: ObjectKey) -> int:
    return zlib.crc32(key.encode()) % PLACES
