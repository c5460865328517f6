"""A Merkle tree over listed keys, in the form of RFC 9162 section 2.1.

A leaf is `sha256(0x00 || data)`, a node `sha256(0x01 || left || right)`, so that no leaf can pass
for a node. The root of nothing is `sha256("")`.
"""

import hashlib
from collections.abc import Iterable

from sluice_protocol.units import Digest


def listed_leaf(key: str, state: str) -> bytes:
    """Gives the leaf of one listed object; `state` is its ETag, or incarnation and ETag."""
    return hashlib.sha256(b"\x00" + key.encode() + b"\x00" + state.encode()).digest()


def join(left: bytes, right: bytes) -> bytes:
    """Gives the node over two subtrees."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class MerkleTree:
    """Takes leaves one by one and keeps only the roots of full subtrees: log2(n) hashes."""

    def __init__(self) -> None:
        """Starts with no leaf."""
        self._peaks: list[bytes] = []
        self.leaves = 0

    def add(self, leaf: bytes) -> None:
        """Appends one leaf hash."""
        node, at = leaf, self.leaves
        while at & 1:
            node = join(self._peaks.pop(), node)
            at >>= 1
        self._peaks.append(node)
        self.leaves += 1

    def root(self) -> Digest:
        """Gives the root over the leaves so far."""
        if not self._peaks:
            return Digest(hashlib.sha256(b"").hexdigest())
        node = self._peaks[-1]
        for left in reversed(self._peaks[:-1]):
            node = join(left, node)
        return Digest(node.hex())


def root_of(leaves: Iterable[bytes]) -> Digest:
    """Gives the root over leaf hashes."""
    tree = MerkleTree()
    for leaf in leaves:
        tree.add(leaf)
    return tree.root()


def root_of_roots(roots: Iterable[Digest]) -> Digest:
    """Gives the root over the roots of ranges, in order; each root is data of a leaf."""
    return root_of(hashlib.sha256(b"\x00" + bytes.fromhex(root)).digest() for root in roots)
