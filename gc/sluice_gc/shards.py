"""The sha256 space in shards of equal first bytes, and the key ranges that belong to them."""

from dataclasses import dataclass

from sluice_protocol.errors import BadUsage

BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Shard:
    """Digests whose first byte is `first <= byte < end`."""

    first: int
    end: int

    @property
    def name(self) -> str:
        """`00-0f` for the first sixteenth: both bytes inclusive."""
        return f"{self.first:02x}-{self.end - 1:02x}"

    def bounds(self, root: str) -> tuple[str, str | None]:
        """Gives `start_after` and `end_at` of this shard's keys under `<root>sha256/<hh>/…`.

        The first shard starts at the prefix itself and the last one ends with it, so that keys of
        a foreign form fall into some shard and are seen. No key ends in `sha256/<hh>`: the bounds
        of two neighbours meet without a gap.
        """
        start = "" if self.first == 0 else f"{root}sha256/{self.first:02x}"
        end = None if self.end == BYTES else f"{root}sha256/{self.end:02x}"
        return start, end


def split_shards(count: int) -> tuple[Shard, ...]:
    """Gives `count` equal shards of the sha256 space.

    Raises:
        BadUsage: `count` does not divide 256.
    """
    if count < 1 or BYTES % count:
        raise BadUsage(f"shards must divide 256, shards=`{count}`")
    width = BYTES // count
    return tuple(Shard(first=at, end=at + width) for at in range(0, BYTES, width))


def parse_shard(name: str) -> Shard:
    """Reads a shard's name.

    Raises:
        BadUsage: It has another form.
    """
    first, dash, last = name.partition("-")
    try:
        shard = Shard(first=int(first, 16), end=int(last, 16) + 1)
    except ValueError as error:
        raise BadUsage(f"not a shard, name=`{name}`") from error
    if not dash or shard.name != name or not 0 <= shard.first < shard.end <= BYTES:
        raise BadUsage(f"not a shard, name=`{name}`")
    return shard
