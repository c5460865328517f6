"""Settings of producers and consumers."""

from dataclasses import dataclass
from typing import Final

from sluice_queue.register import ENTRIES_MAX
from sluice_store.retry import RetrySettings

SWAP_RETRY: Final = RetrySettings()
"""Bounds of one swap of a register, for which several writers may compete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer flushes.

    Attributes:
        flush_interval_s: Longest wait of a batch for others, seconds.
        flush_bytes: Referenced frame bytes that start a flush immediately, bytes.
        max_unflushed_bytes: Most referenced frame bytes that are accepted but not yet durable,
            bytes; `produce` waits above it.
        list_batches_max: Most batches in one work list, count.
        held_entries_max: Entries in the register before its older half moves to a segment, count,
            at most 4 096.
        retry: Bounds of one swap.
    """

    flush_interval_s: float = 0.1
    flush_bytes: int = 64 * 1024 * 1024
    max_unflushed_bytes: int = 256 * 1024 * 1024
    list_batches_max: int = 4096
    held_entries_max: int = ENTRIES_MAX
    retry: RetrySettings = SWAP_RETRY


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a consumer acknowledges.

    Attributes:
        acks_per_dequeue: Calls of `ack` that share one write to the register, count.
        retry: Bounds of one swap.
    """

    acks_per_dequeue: int = 100
    retry: RetrySettings = SWAP_RETRY
