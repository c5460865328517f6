"""The identity of a followed file: a digest of every byte that was read from it.

The digest is a chain over blocks of 64 KiB, so that it can be continued, also from a checkpoint:
the digest of each block, the last and incomplete one included, is its AEGIS-256 tag, whose key is
the previous digest. Of a block of zero bytes it is that of one word, because it may be a hole.

Two blocks have the same tag with a probability of 2^-128, unless their writer chose them with the
digest of all bytes before them. Such a writer can hide a change of a file that is its own, which it
could also leave out. A sha256 of every byte takes four times as long with the processor's
instructions for it, and 12 times without.

What a comparison costs: the last 64 to 128 KiB before the position are compared whenever the file
has changed. Everything before them is read again, once, when only that can decide: at a start, if
size or times of the file are not those of its checkpoint; when it was modified and did not grow;
and when a new file may be a copy of it. It is read in steps of at most 64 MiB a poll, and no line
of the file is read meanwhile.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from nacl.bindings import crypto_aead_aegis256_encrypt

from sluice_agent.spool.format import FileCheckpoint

BLOCK_BYTES: Final = 64 * 1024
STEP_BYTES: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_START: Final = hashlib.sha256(b"the start of a file").digest()
_ZEROS: Final = bytes(BLOCK_BYTES)
_HOLE: Final = b"a block of zero bytes"
_NONCE: Final = bytes(32)


class ReadBytes(Protocol):
    """Reads bytes of a file at an offset."""

    def __call__(self, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes."""


class PrefixDigest:
    """The digest of a file's bytes from `begin` to `offset`.

    Attributes:
        begin: The first byte that it covers.
        base: Where the block before the last one begins.
    """

    def __init__(self, *, begin: int = 0, base: int | None = None, chain: bytes = _START) -> None:
        """Begin with no bytes, or at the base of a checkpoint with the digest there."""
        self.begin = begin
        self.base = begin if base is None else base
        self.offset = self.base
        self._chain = chain  # the digest at `base`
        self._later = chain  # the digest where the last block begins
        self._last_at = self.base
        self._last = bytearray()

    def update(self, data: bytes) -> None:
        """Continue with the next bytes."""
        rest = memoryview(data)
        while rest:
            room = BLOCK_BYTES - len(self._last)
            part, rest = rest[:room], rest[room:]
            if len(self._last) + len(part) < BLOCK_BYTES:
                self._last += part
                break
            block = self._last + part if self._last else part
            self._chain, self._later = self._later, _link(self._later, block)
            self.base, self._last_at = self._last_at, self._last_at + BLOCK_BYTES
            self._last = bytearray()
        self.offset += len(data)

    def digest(self) -> bytes:
        """Return the digest of all bytes so far."""
        return _link(self._later, self._last) if self._last else self._later

    def base_digest(self) -> bytes:
        """Return the digest at `base`."""
        return self._chain

    def continued_from_base(self) -> "PrefixDigest":
        """Return the digest at `base`, to be continued."""
        return PrefixDigest(begin=self.begin, base=self.base, chain=self._chain)


def _link(chain: bytes, block: bytearray | memoryview) -> bytes:
    data = bytes(block)
    return crypto_aead_aegis256_encrypt(b"", _HOLE if data == _ZEROS else data, _NONCE, chain)


def tail_digest(checkpoint: FileCheckpoint, read: ReadBytes) -> PrefixDigest | None:
    """Return the digest at a checkpoint; None if the last bytes before it differ.

    The bytes before these are not read.
    """
    found = PrefixDigest(
        begin=checkpoint.begin, base=checkpoint.base, chain=bytes.fromhex(checkpoint.base_sha256)
    )
    data = read(checkpoint.base, checkpoint.offset - checkpoint.base)
    found.update(data)
    is_same = found.offset == checkpoint.offset and found.digest().hex() == checkpoint.sha256
    return found if is_same else None


class PrefixComparison:
    """Compares the whole prefix of a file with that of checkpoints, in steps.

    Attributes:
        matching: The checkpoints whose prefix the file has, with the digest there.
    """

    def __init__(self, checkpoints: Iterable[FileCheckpoint], read: ReadBytes) -> None:
        """Leave out checkpoints that the last bytes before their position already exclude."""
        self.matching: list[tuple[FileCheckpoint, PrefixDigest]] = []
        self._read = read
        likely = [one for one in checkpoints if tail_digest(one, read) is not None]
        self._left = sorted(likely, key=lambda one: (one.begin, one.offset))
        self._found: PrefixDigest | None = None

    def step(self, size_bytes: int = STEP_BYTES) -> bool:
        """Read more; return True once every checkpoint is decided."""
        while self._left and size_bytes > 0:
            wanted = self._left[0]
            if self._found is None or self._found.begin != wanted.begin:
                self._found = PrefixDigest(begin=wanted.begin)
            data = self._read(
                self._found.offset, min(wanted.offset - self._found.offset, _READ_BYTES)
            )
            self._found.update(data)
            size_bytes -= len(data)
            if self._found.offset == wanted.offset:
                self._left.pop(0)
                if self._found.digest().hex() == wanted.sha256:
                    digest = tail_digest(wanted, self._read)
                    if digest is not None:
                        self.matching.append((wanted, digest))
            elif not data:
                self._left.pop(0)  # it became shorter
        return not self._left


def best(
    comparison: PrefixComparison, groups: Sequence[Iterable[FileCheckpoint]]
) -> tuple[int, FileCheckpoint, PrefixDigest] | None:
    """Return the match of the first group that has one, with its number; the longest of a group."""
    for number, group in enumerate(groups):
        members = list(group)
        found = [pair for pair in comparison.matching if pair[0] in members]
        if found:
            checkpoint, digest = max(found, key=lambda pair: pair[0].offset)
            return number, checkpoint, digest
    return None
