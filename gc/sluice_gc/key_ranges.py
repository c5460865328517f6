"""Key ranges of a listing: how prefixes are split, listed to the end, and proved to be covered.

Reverse references and blobs are split into shards by the first byte of the sha256, manifests into
ranges between agents. Coverage is proved: each range records its bounds, its pages and a Merkle
root of the listed keys. A prefix is covered only if its ranges are contiguous and do not overlap.

The Merkle tree has the form of RFC 9162, section 2.1. A leaf is `sha256(0x00 || data)` and a node
`sha256(0x01 || left || right)`, so that a leaf is never a valid node. The root of an empty tree is
`sha256("")`.
"""

import hashlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final

from sluice_gc.errors import AuditIncomplete
from sluice_protocol.collection_records import KeyRange, PrefixCoverage
from sluice_protocol.errors import BadUsage
from sluice_protocol.units import Digest
from sluice_store.plan_folders import read_first_key
from sluice_store.port import ListedIncarnation, ListedObject, ObjectStore

_FIRST_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class DigestShard:
    """The digests with `first <= first byte < end`."""

    first: int
    end: int

    @property
    def name(self) -> str:
        """Return the name, `00-0f` for the first sixteenth; both bytes are inclusive."""
        return f"{self.first:02x}-{self.end - 1:02x}"

    def __contains__(self, digest: Digest) -> bool:
        return self.first <= int(digest[:2], 16) < self.end

    def bounds(self, root: str) -> tuple[str, str | None]:
        """Return `start_after` and `end_at` of the keys of this shard under `<root>sha256/<hh>/…`.

        The first shard starts at the start of the prefix and the last shard ends at its end, so
        that every key of unknown form is in a shard and is found. No key ends in `sha256/<hh>`, so
        that the bounds of neighbouring shards have no gap.
        """
        start = "" if self.first == 0 else f"{root}sha256/{self.first:02x}"
        end = None if self.end == _FIRST_BYTES else f"{root}sha256/{self.end:02x}"
        return start, end


def split_shards(count: int) -> tuple[DigestShard, ...]:
    """Return `count` equal shards of the sha256 space; refuse a count that does not divide 256."""
    if count < 1 or _FIRST_BYTES % count:
        raise BadUsage(f"number of shards must divide 256, shards=`{count}`")
    width = _FIRST_BYTES // count
    return tuple(DigestShard(first=at, end=at + width) for at in range(0, _FIRST_BYTES, width))


def parse_shard(name: str) -> DigestShard:
    """Parse the name of a shard."""
    first, dash, last = name.partition("-")
    try:
        shard = DigestShard(first=int(first, 16), end=int(last, 16) + 1)
    except ValueError as error:
        raise BadUsage(f"not the name of a shard, name=`{name}`") from error
    if not dash or shard.name != name or not 0 <= shard.first < shard.end <= _FIRST_BYTES:
        raise BadUsage(f"not the name of a shard, name=`{name}`")
    return shard


_PROBES_MAX: Final = 4096


_RANGES_PER_TASK: Final = 4


_RANGE_OBJECTS: Final = 200_000


Bounds = tuple[str, str | None]


def decide_range_count(chosen: int, parallelism: int, objects_before: int) -> int:
    """Return the number of key ranges: as configured, or by cores and number of objects.

    A task keeps the rows of its range in memory, so that a large store needs more ranges than
    cores.
    """
    if chosen > 0:
        return chosen
    by_cores = parallelism * _RANGES_PER_TASK if parallelism > 1 else 1
    return max(by_cores, -(-objects_before // _RANGE_OBJECTS))


async def split_prefix(store: ObjectStore, prefix: str, wanted: int) -> list[Bounds]:
    """Return bounds that cover a prefix, split between agents into about `wanted` ranges.

    Agents are found one by one: a listing of one page starts after the last possible key of the
    previous agent. No agent is in two ranges, so that one task sees the gaps in its sequence
    numbers.
    """
    if wanted <= 1:
        return [("", None)]
    agents = await _find_agents(store, prefix)
    step = max(1, -(-len(agents) // wanted))
    return join_bounds([agent_end(one) for one in agents[step - 1 : -1 : step]])


def join_bounds(cuts: list[str]) -> list[Bounds]:
    """Return contiguous bounds from the first key to the last, split at `cuts`."""
    starts = ["", *cuts]
    return list(zip(starts, [*cuts, None], strict=True))


def agent_end(place: str) -> str:
    """Return a bound after every key `…agent=<hex>/boot=…` and before the keys of other agents.

    `/` sorts below every hexadecimal digit, so that no longer id with the same start is between.
    """
    return f"{place}~"


async def _find_agents(store: ObjectStore, prefix: str) -> list[str]:
    """Return `…agent=<hex>/` of every agent, at most of the first `_PROBES_MAX`."""
    agents: list[str] = []
    after = ""
    while len(agents) < _PROBES_MAX:
        key = await read_first_key(store, prefix, after)
        if key is None:
            break
        place = folder_of_agent(key)
        agents.append(place)
        after = agent_end(place)
    return agents


def folder_of_agent(key: str) -> str:
    """Return a key up to the slash after `agent=<hex>`, or unchanged if its form is unknown."""
    head, found, rest = key.partition("agent=")
    agent, slash, _ = rest.partition("/")
    return f"{head}{found}{agent}/" if found and slash else key


def cover_prefix(prefix: str, ranges: Iterable[KeyRange]) -> PrefixCoverage:
    """Return the coverage of a prefix by its ranges.

    Raise `AuditIncomplete` if a range is missing, overlaps, or was not listed completely.
    """
    ordered = tuple(sorted(ranges, key=lambda one: one.start_after.encode()))
    check_contiguous(prefix, ordered)
    return PrefixCoverage(
        prefix=prefix,
        ranges=ordered,
        objects=sum(one.objects for one in ordered),
        root=root_of_roots(one.root for one in ordered),
    )


def check_contiguous(prefix: str, ranges: tuple[KeyRange, ...]) -> None:
    """Raise `AuditIncomplete` unless ranges cover the prefix once, each with at least one page."""
    expected: str | None = ""
    for one in ranges:
        if expected is None or one.start_after != expected:
            raise AuditIncomplete(prefix, f"no range starts after this key, key=`{expected}`")
        if one.pages < 1:
            raise AuditIncomplete(prefix, f"a range has no page, start_after=`{one.start_after}`")
        expected = one.end_at
    if not ranges or expected is not None:
        raise AuditIncomplete(prefix, f"no range follows this key, key=`{expected or ''}`")


def check_coverage(covered: PrefixCoverage) -> None:
    """Raise `AuditIncomplete` if a stored coverage is not contiguous or has other sums."""
    again = cover_prefix(covered.prefix, covered.ranges)
    if again != covered:
        raise AuditIncomplete(covered.prefix, "the sums do not match the ranges")


class RangeListing:
    """One pass over the keys with `start_after < key <= end_at` under a prefix."""

    def __init__(
        self, store: ObjectStore, prefix: str, start_after: str, end_at: str | None
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._start_after = start_after
        self._end_at = end_at
        self._tree = MerkleTree()
        self._pages = 0
        self._dates: list[int] = []
        self._last_key = start_after
        self._ended = False

    async def objects(self) -> AsyncIterator[tuple[ListedObject, ...]]:
        """List current objects, page by page; refuse keys outside the range or out of order."""
        pages = self._store.list(self._prefix, start_after=self._start_after, end_at=self._end_at)
        async for page in pages:
            for one in page.objects:
                self._check_order(one.key, again=False)
                self._tree.add(listed_leaf(one.key, one.etag))
            self._count_page(page.date_ns, last=page.last)
            yield page.objects

    async def incarnations(self) -> AsyncIterator[tuple[ListedIncarnation, ...]]:
        """List every object version and delete marker, page by page, as `objects` does."""
        pages = self._store.list_incarnations(
            self._prefix, start_after=self._start_after, end_at=self._end_at
        )
        async for page in pages:
            for one in page.incarnations:
                self._check_order(one.key, again=True)
                self._tree.add(listed_leaf(one.key, f"{one.incarnation}\x00{one.etag}"))
            self._count_page(page.date_ns, last=page.last)
            yield page.incarnations

    def covered_range(self) -> KeyRange:
        """Return the range, or raise `AuditIncomplete` before the last page of the listing."""
        if not self._ended:
            raise AuditIncomplete(
                self._prefix, f"the listing ended early, last_key=`{self._last_key}`"
            )
        return KeyRange(
            start_after=self._start_after,
            end_at=self._end_at,
            pages=self._pages,
            objects=self._tree.leaves,
            root=self._tree.root(),
            first_date_unix_ns=self._dates[0],
            last_date_unix_ns=max(self._dates),
        )

    def _count_page(self, date_ns: int, *, last: bool) -> None:
        self._pages += 1
        self._dates.append(date_ns)
        self._ended = last

    def _check_order(self, key: str, *, again: bool) -> None:
        """Verify that keys ascend: a repeated or earlier page would hide keys."""
        now, before = key.encode(), self._last_key.encode()
        past = self._end_at is not None and now > self._end_at.encode()
        falls = now < before or (now == before and (not again or key == self._start_after))
        if falls or past or not key.startswith(self._prefix):
            raise AuditIncomplete(self._prefix, f"key is listed out of order, key=`{key}`")
        self._last_key = key


def listed_leaf(key: str, state: str) -> bytes:
    """Return the leaf of one listed object; `state` is its ETag, or version id and ETag."""
    return hashlib.sha256(b"\x00" + key.encode() + b"\x00" + state.encode()).digest()


def merkle_node(left: bytes, right: bytes) -> bytes:
    """Return the hash of the node over two subtrees."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class MerkleTree:
    """A Merkle tree that grows by one leaf at a time and stores log2(n) hashes."""

    def __init__(self) -> None:
        self._peaks: list[bytes] = []
        self.leaves = 0

    def add(self, leaf: bytes) -> None:
        """Append the hash of one leaf."""
        node, at = leaf, self.leaves
        while at & 1:
            node = merkle_node(self._peaks.pop(), node)
            at >>= 1
        self._peaks.append(node)
        self.leaves += 1

    def root(self) -> Digest:
        """Return the root over all leaves so far."""
        if not self._peaks:
            return Digest(hashlib.sha256(b"").hexdigest())
        node = self._peaks[-1]
        for left in reversed(self._peaks[:-1]):
            node = merkle_node(left, node)
        return Digest(node.hex())


def merkle_root(leaves: Iterable[bytes]) -> Digest:
    """Return the root over hashes of leaves."""
    tree = MerkleTree()
    for leaf in leaves:
        tree.add(leaf)
    return tree.root()


def root_of_roots(roots: Iterable[Digest]) -> Digest:
    """Return the root over the roots of ranges, in order; each root is the data of a leaf."""
    return merkle_root(hashlib.sha256(b"\x00" + bytes.fromhex(root)).digest() for root in roots)
