"""Remembers the keys met lately, in a few bytes each."""

import hashlib
from collections.abc import Iterable


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


def _short(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
