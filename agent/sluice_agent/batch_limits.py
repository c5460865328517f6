"""The limits of a batch and of a block of lines."""

from dataclasses import dataclass
from typing import Final

from sluice_protocol.errors import BadUsage

BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""A larger batch of incompressible bytes could exceed the maximum size of a frame."""
FRESH_RECORDS_MAX: Final = 300_000
"""Records of a batch that is cut by freshness: about as many as empty lines fit into its bytes."""
FRESHNESS_S_MAX: Final = 3600.0
BLOCK_READ_BYTES_MIN: Final = 16 * 1024
BLOCK_COST_BYTES_MAX: Final = 4 * 1024 * 1024
"""One block fills a batch of the default size: each costs a fixed time, and joining copies them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits at which a batch is cut.

    Attributes:
        bytes_max: Approximate size before compression; at most 8 MiB.
        freshness_s: Seconds since the first record, if every record may wait: see
            `RecordBlock.may_wait`. 0 means `age_s_max`.

    Raises:
        BadUsage: A limit would produce frames that no gateway accepts.
    """

    bytes_max: int = 4 * 1024 * 1024
    records_max: int = 100_000
    age_s_max: float = 1.0
    freshness_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.bytes_max <= BATCH_BYTES_MAX:
            raise BadUsage(
                f"batch bytes must be 1 to {BATCH_BYTES_MAX}, batch_bytes=`{self.bytes_max}`"
            )
        if self.records_max < 1 or self.age_s_max < 0:
            raise BadUsage("batch records must be at least 1 and batch age must not be negative")
        if not 0 <= self.freshness_s <= FRESHNESS_S_MAX:
            raise BadUsage(
                f"freshness must be 0 to {FRESHNESS_S_MAX:g} s, freshness_s=`{self.freshness_s}`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLimits:
    """How much of a file or pipe is read and parsed together. A block has at least one line."""

    read_bytes: int = 256 * 1024
    cost_bytes_max: int = BLOCK_COST_BYTES_MAX
    records_max: int = 100_000

    @classmethod
    def of(cls, batch: BatchLimits) -> "BlockLimits":
        """Return the limits of equal blocks that fill a batch without exceeding it."""
        blocks = -(-batch.bytes_max // BLOCK_COST_BYTES_MAX)
        cost_bytes_max = batch.bytes_max // blocks
        return cls(
            read_bytes=max(BLOCK_READ_BYTES_MIN, cost_bytes_max),
            cost_bytes_max=cost_bytes_max,
            records_max=batch.records_max,
        )
