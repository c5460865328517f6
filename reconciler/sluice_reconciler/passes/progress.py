"""The stored progress of a full pass, and the decision when the next one begins.

`reconciler/v1/full-pass.json` contains the last key of each span up to which the pass is finished.
A process that restarts continues there. The record is replaced and never grows with the number of
batches. It also coordinates reconcilers: a pass whose record changes is not repeated by another
process. Nothing that is correct depends on it; a lost record costs one more pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import structlog
from msgspec.structs import replace

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import RECONCILER
from sluice_protocol.manifests import AcceptedManifest, decode_record, encode_record
from sluice_protocol.outcomes import Applied, Found
from sluice_protocol.units import NS_PER_S, ETag, ObjectKey, UnixNs
from sluice_queue.register_client import Runtime
from sluice_store.port import ObjectStore

log = structlog.get_logger()

PASS: Final = ObjectKey(f"{RECONCILER}full-pass.json")
SAVE_S: Final = 10.0
"""Time between two writes of the progress, at least."""
RIVAL_S: Final = 60.0
"""Time without a change of the record after which another process continues the pass."""
RETRY_S: Final = 60.0
"""Time after a pass that left batches behind until the next one, in seconds."""
PASS_INTERVAL_S_MIN: Final = 60.0
"""Time between the beginnings of two passes of a small store, while journals name every batch."""
PASS_INTERVAL_S_PER_PAGE: Final = 10.0
"""The same time for each page of 1 000 manifests: one LIST in ten seconds, on average."""
_PAGE_MANIFESTS: Final = 1_000


class PassSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One span of `accepted/`.

    Attributes:
        after: Keys after this one are in the span; empty for the first span.
        up_to: The last key that may be in the span; None for the last span.
        at: Every key of the span up to this one is finished; empty for none.
    """

    after: str
    up_to: str | None
    at: str = ""
    listed: int = 0
    done: bool = False


class PassRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the last full pass. A lost record costs one more pass.

    Attributes:
        left: It left a batch behind, so it cannot be continued, only repeated.
        missed: Number of batches that it found and no journal named.
        handed_over: How often it named batches for the owners of their lanes.
        cuts: Where the next pass cuts `accepted/` into spans; at most 63.
        revision: Number of the write.
    """

    schema: Literal["sluice.reconciler_pass.v1"] = "sluice.reconciler_pass.v1"
    began_unix_ns: int
    spans: tuple[PassSpan, ...]
    left: bool = False
    ended: bool = False
    missed: int = 0
    handed_over: int = 0
    cuts: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    revision: int = 0
    writer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPass:
    """What to do now: whether a pass starts, and continues the stored one.

    An urgent one is not slowed down, because something waits for it.
    """

    start: bool
    resume: bool = False
    urgent: bool = False


def safety_interval_s(manifests: int, most_s: float) -> float:
    """Return the time between two passes that look for batches which no journal names, seconds.

    `manifests` is what the last pass listed.
    """
    pages = manifests / _PAGE_MANIFESTS
    return min(most_s, max(PASS_INTERVAL_S_MIN, PASS_INTERVAL_S_PER_PAGE * pages))


def decide_next_pass(
    now_ns: UnixNs,
    stored: PassRecord | None,
    *,
    wanted_from_ns: UnixNs | None,
    interval_s: float,
    rival_runs: bool,
) -> NextPass:
    """Decide whether a full pass starts now, where journals make it rare.

    A pass that begins at `wanted_from_ns` or later is needed, because a process died or a journal
    is broken; None if nothing waits. `rival_runs` is set if another process makes the stored pass
    at present.
    """
    if rival_runs:
        return NextPass(start=False)
    if stored is None:
        return NextPass(start=True)
    wanted = wanted_from_ns is not None and stored.began_unix_ns < wanted_from_ns <= now_ns
    if stored.left:
        retry = now_ns >= stored.began_unix_ns + RETRY_S * NS_PER_S
        return NextPass(start=retry, urgent=wanted)
    if wanted:
        return NextPass(start=True, urgent=True)
    if not stored.ended:
        return NextPass(start=True, resume=True)
    return NextPass(start=now_ns >= stored.began_unix_ns + interval_s * NS_PER_S)


class PassProgress:
    """The stored progress: read, and written by one process at a time."""

    def __init__(self, store: ObjectStore, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._etag: ETag | None = None
        self._writer = runtime.id_bytes().hex()
        self._saved_at_ns = runtime.clock.monotonic_ns()
        self._changed_at_ns = 0
        self._revision: tuple[str, int] = ("", 0)
        self.record: PassRecord | None = None

    async def read(self) -> None:
        """Read the record; one that is unreadable counts as none."""
        read = await self._store.get(PASS)
        self.record, self._etag = None, None
        if isinstance(read, Found):
            self._etag = read.info.etag
            try:
                self.record = decode_record(PASS, read.body, PassRecord)
            except InvalidRecord as error:
                log.warning("pass_record_unreadable", key=PASS, reason=error.reason)
        revision = ("", 0) if self.record is None else (self.record.writer, self.record.revision)
        if revision != self._revision:
            self._revision, self._changed_at_ns = revision, self._runtime.clock.monotonic_ns()

    @property
    def rival_runs(self) -> bool:
        """Whether another process changed an unfinished pass lately."""
        if self.record is None or self.record.ended or self.record.writer == self._writer:
            return False
        silent_ns = self._runtime.clock.monotonic_ns() - self._changed_at_ns
        return silent_ns < RIVAL_S * NS_PER_S

    def is_due(self) -> bool:
        """Return True if the last write is at least `SAVE_S` ago."""
        return self._runtime.clock.monotonic_ns() - self._saved_at_ns >= SAVE_S * NS_PER_S

    async def save(self, record: PassRecord) -> bool:
        """Swap the record in; return False if another process wrote it, or if that is unknown."""
        revision = 1 if self.record is None else self.record.revision + 1
        wanted = replace(record, revision=revision, writer=self._writer)
        self._saved_at_ns = self._runtime.clock.monotonic_ns()
        body = encode_record(wanted)
        outcome = (
            await self._store.create(PASS, body)
            if self._etag is None
            else await self._store.replace(PASS, body, if_match=self._etag)
        )
        if isinstance(outcome, Applied):
            self._etag, self.record = outcome.etag, wanted
            return True
        await self.read()
        return self.record == wanted


@dataclass(slots=True, kw_only=True)
class PassOptions:
    """How one full pass runs.

    Attributes:
        resume: The progress of a pass that is continued.
        progress: Where the progress is stored now and then; None for a pass that cannot be
            continued.
        pace_s: Pause after each page of the listing, seconds.
        unnamed: Returns those of the batches that a journal should have named before the pass.
        retry_left: Whether batches in lanes of other reconcilers are handed over to them.
    """

    resume: PassRecord | None = None
    progress: PassProgress | None = None
    pace_s: float = 0.0
    unnamed: Callable[[Sequence[AcceptedManifest]], int] | None = None
    retry_left: bool = False
