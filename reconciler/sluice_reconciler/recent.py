"""Remembers keys in a few bytes each, by hashes of them."""

import hashlib
from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


class Recent:
    """Between half of and all of the `keys_max` keys added last, by a 128-bit hash.

    Two generations: when the younger is full it becomes the older, and the older is forgotten.
    """

    def __init__(self, keys_max: int) -> None:
        """Starts empty."""
        self._half = keys_max // 2
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def __contains__(self, key: str) -> bool:
        """Tells whether a key was added lately."""
        one = _short(key)
        return one in self._young or one in self._old

    def add(self, keys: Iterable[str]) -> None:
        """Remembers keys; the ones added longest ago are forgotten first."""
        for key in keys:
            self._young.add(_short(key))
            if len(self._young) >= self._half:
                self._old, self._young = self._young, set()


class ShortKeys:
    """A set of keys by a 64-bit hash, eight bytes each; add all, then ask.

    It may take a foreign key for one of its own once in 2^64 divided by their number.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._added = array("Q")
        self._sorted: npt.NDArray[np.uint64] | None = None

    def add(self, keys: Iterable[str]) -> None:
        """Takes keys in."""
        self._added.extend(int.from_bytes(_short(key)[:8], "little") for key in keys)
        self._sorted = None

    def __contains__(self, key: str) -> bool:
        """Tells whether a key was added."""
        if self._sorted is None:
            self._sorted = np.sort(np.frombuffer(self._added, dtype=np.uint64))
        wanted = np.uint64(int.from_bytes(_short(key)[:8], "little"))
        at = int(np.searchsorted(self._sorted, wanted))
        return at < len(self._sorted) and bool(self._sorted[at] == wanted)


def _short(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
