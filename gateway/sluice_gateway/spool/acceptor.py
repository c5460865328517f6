"""Accepts uploads into a spool, and remembers the records that its transfer has to move.

A batch whose local manifest may have expired is accepted into the authority instead, which decides
it by the rules of every upload. Source: ADR 16.

`SpoolExpiry` removes the manifests of transferred batches. A manifest stays in the spool for the
retry horizon and the margin after it is transferred: it decides retries without the authority. Then
it is removed in this order:

    mark of the boot written ──► manifest deleted ──► marker `transferred/v1/<key>` deleted

The mark `transferred/v1/expired/…` contains the highest sequence number of a boot that has expired.
An upload that begins at or below it, and has no manifest here, may be one that has expired. The
authority decides it by the rules of every upload: a duplicate, a conflict, or a new batch. Without
the authority it gets 503. Later numbers are decided here. So an identity never has two owners,
whatever the clock of this machine shows. With a damaged mark, every number of the boot may have
expired.

A crash between two steps repeats the last one: the marker is what finds the manifest again. One
small mark per boot remains for as long as the spool exists; the manifests, one per batch, do not.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, Literal

import msgspec
import structlog

from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.spool.records import SpoolBlobs, SpoolStores
from sluice_gateway.uploads.acceptor import AcceptanceRun, Acceptor, Upload
from sluice_protocol.acceptance import Accepted, Conflict
from sluice_protocol.authority import Authority
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage, ErrorCode, InvalidRecord
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED,
    accepted_key,
    blob_key,
    parse_accepted_key,
    quarantine_key,
)
from sluice_protocol.manifests import (
    TRANSFER_MARKERS,
    decode_record,
    encode_record,
    transfer_marker_key,
)
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_store.port import ListPage, ObjectStore
from sluice_store.retry import Backoff, delete_versions, replace_version
from sluice_web.problems import HttpRefusal

EXPIRED: Final = f"{TRANSFER_MARKERS}expired/"
MARKERS: Final = f"{TRANSFER_MARKERS}{ACCEPTED}"
PAUSE_S: Final = 600.0
"""Time between two passes over all markers; a pass checks one page per call."""
BOOTS_REMEMBERED_MAX: Final = 10_000
NONE: Final = -1
EVERY: Final = 2**63 - 1
"""Above every sequence number."""

log = structlog.get_logger()


class ExpiredMark(msgspec.Struct, frozen=True, kw_only=True):
    """The highest sequence number of a boot up to which manifests of a spool may have expired."""

    schema: Literal["sluice.spool_expired.v1"] = "sluice.spool_expired.v1"
    agent_id: str
    boot_id: str
    through: int


def expired_key(agent_id: str, boot_id: str) -> ObjectKey:
    """Return the key of the mark of a boot."""
    agent, boot = agent_id.encode().hex(), boot_id.encode().hex()
    return ObjectKey(f"{EXPIRED}agent={agent}/boot={boot}.json")


class SpoolExpiry:
    """Removes the manifests of a spool after their time, and remembers that it did."""

    def __init__(
        self,
        local: ObjectStore,
        authority: Authority,
        clock: Clock,
        is_pending: Callable[[ObjectKey], bool],
    ) -> None:
        """Bind a spool; `is_pending` reports a manifest that the transfer still needs."""
        self._local = local
        self._after_ns = (authority.retry_horizon_s + authority.margin_s) * NS_PER_S
        self._clock = clock
        self._is_pending = is_pending
        self._backoff = Backoff.seeded_by(clock)
        self._uploading: Counter[ObjectKey] = Counter()
        self._deleting: ObjectKey | None = None
        self._deleted = asyncio.Condition()
        self._through: dict[tuple[str, str], int] = {}
        self._cursor = ""
        self._pass_ended_ns: int | None = None

    @asynccontextmanager
    async def uploading(self, identity: Identity) -> AsyncIterator[None]:
        """Keep the expiry from a manifest while an upload of its identity runs."""
        key = accepted_key(identity)
        if self._deleting == key:
            async with self._deleted:
                await self._deleted.wait_for(lambda: self._deleting != key)
        self._uploading[key] += 1
        try:
            yield
        finally:
            self._uploading[key] -= 1
            if not self._uploading[key]:
                del self._uploading[key]

    async def may_have_expired(self, identity: Identity) -> bool:
        """Return True if only the authority can decide an identity; call it in `uploading`."""
        if identity.seq_start > await self._expired_through(identity.agent_id, identity.boot_id):
            return False
        return not isinstance(await self._local.head(accepted_key(identity)), ObjectInfo)

    async def expire_page(self) -> int:
        """Check the next page of markers if a pass is due; return the number of expired manifests.

        After an error the same page is checked again.
        """
        now_ns = self._clock.monotonic_ns()
        ended_ns = self._pass_ended_ns
        if not self._cursor and ended_ns is not None and now_ns - ended_ns < PAUSE_S * NS_PER_S:
            return 0
        page = await anext(self._local.list(MARKERS, start_after=self._cursor))
        due = [key for key in self._due(page) if not self._is_used(key)]
        await self._write_marks(due)
        expired = 0
        for key in due:
            expired += await self._expire(key)
        if expired:
            log.info("spool_manifests_expired", expired=expired)
        self._cursor = "" if page.last else page.objects[-1].key
        self._pass_ended_ns = now_ns if page.last else None
        return expired

    def _due(self, page: ListPage) -> list[ObjectKey]:
        """Return the records whose marker is old enough, by the clock of the spool."""
        return [
            ObjectKey(item.key.removeprefix(TRANSFER_MARKERS))
            for item in page.objects
            if page.date_ns - item.last_modified_ns > self._after_ns
        ]

    def _is_used(self, key: ObjectKey) -> bool:
        return key in self._uploading or self._is_pending(key)

    async def _write_marks(self, keys: Iterable[ObjectKey]) -> None:
        """Make durable that these identities have expired; only then they may be removed."""
        wanted: dict[tuple[str, str], int] = {}
        for key in keys:
            identity = _identity_in(key)
            if identity is not None:
                boot = identity.agent_id, identity.boot_id
                wanted[boot] = max(wanted.get(boot, NONE), identity.seq_end)
        for (agent_id, boot_id), through in wanted.items():
            if through > await self._expired_through(agent_id, boot_id):
                mark = ExpiredMark(agent_id=agent_id, boot_id=boot_id, through=through)
                await self._write_mark(mark)

    async def _write_mark(self, mark: ExpiredMark) -> None:
        key = expired_key(mark.agent_id, mark.boot_id)
        await replace_version(self._local, key, encode_record(mark), self._backoff)
        self._remember((mark.agent_id, mark.boot_id), mark.through)

    async def _expire(self, key: ObjectKey) -> bool:
        if self._is_used(key) or _identity_in(key) is None:
            return False
        self._deleting = key
        try:
            await delete_versions(self._local, key)
            await delete_versions(self._local, transfer_marker_key(key))
        finally:
            async with self._deleted:
                self._deleting = None
                self._deleted.notify_all()
        return True

    async def _expired_through(self, agent_id: str, boot_id: str) -> int:
        boot = agent_id, boot_id
        if boot not in self._through:
            key = expired_key(agent_id, boot_id)
            found = await self._local.get(key)
            through = _through_in(key, found.body) if isinstance(found, Found) else NONE
            self._remember(boot, max(through, self._through.get(boot, NONE)))
        return self._through[boot]

    def _remember(self, boot: tuple[str, str], through: int) -> None:
        self._through.pop(boot, None)
        self._through[boot] = through
        while len(self._through) > BOOTS_REMEMBERED_MAX:
            del self._through[next(iter(self._through))]


def _through_in(key: ObjectKey, body: bytes) -> int:
    """Return the number in a mark; the highest one if it is damaged."""
    try:
        return decode_record(key, body, ExpiredMark).through
    except InvalidRecord as error:
        log.warning("spool_mark_unreadable", key=key, reason=error.reason)
        return EVERY


def _identity_in(key: ObjectKey) -> Identity | None:
    """Return the identity in a key, or None for a key that sluice did not write."""
    try:
        return parse_accepted_key(key)
    except InvalidRecord:
        return None


class SpoolAcceptor:
    """Accepts uploads into one spool.

    `pending` has the known records that are not transferred, with how often each was added.
    `unsure` has the records that an upload without a known outcome may have created.
    """

    def __init__(self, spool: SpoolStores, here: Acceptor, metrics: GatewayMetrics) -> None:
        self._spool = spool
        self._here = here
        self._metrics = metrics
        self.pending: dict[ObjectKey, int] = {}
        self.unsure: dict[ObjectKey, None] = {}
        self.blobs = SpoolBlobs(spool.local, spool.capacity)
        self.expiry = SpoolExpiry(
            spool.local,
            spool.authority,
            spool.clock,
            lambda key: key in self.pending or key in self.unsure,
        )

    async def accept(self, upload: Upload) -> AcceptanceRun:
        """Accept an upload into the spool; into the authority if its manifest may have expired."""
        async with self.expiry.uploading(upload.identity):
            if await self.expiry.may_have_expired(upload.identity):
                return await self._accept_remotely(upload)
            return await self._accept_here(upload)

    async def _accept_remotely(self, upload: Upload) -> AcceptanceRun:
        """Accept an upload into the authority; the journal names it before the response."""
        try:
            await self._spool.journal.register()
        except BadUsage as error:  # another spool claimed the authority: this gateway will stop
            raise HttpRefusal(ErrorCode.STORE_UNAVAILABLE, str(error)) from error
        run = await self._spool.acceptor.accept(upload)
        if isinstance(run.verdict, Accepted):
            self._spool.journal.note_transferred(run.manifest)
            await self._spool.journal.flush()
        return run

    async def _accept_here(self, upload: Upload) -> AcceptanceRun:
        self._spool.capacity.require_room(len(upload.frame))
        created = False
        async with self.blobs.uploading(upload.digest):
            try:
                run = await self._here.accept(upload)
                created = self._add_created(upload, run)
            finally:
                if not created:  # a write whose outcome is unknown may have created the record
                    self.unsure[accepted_key(upload.identity)] = None
                    self.unsure[quarantine_key(upload.identity, upload.digest)] = None
        return run

    def _add_created(self, upload: Upload, run: AcceptanceRun) -> bool:
        """Add the record that an upload created in the spool; return False if that is unknown."""
        match run.verdict:
            case Accepted():
                self._spool.capacity.stored(blob_key(upload.digest), len(upload.frame))
                self.add(accepted_key(upload.identity))
            case Conflict():
                self._spool.capacity.stored(blob_key(upload.digest), len(upload.frame))
                self.add(quarantine_key(upload.identity, upload.digest))
            case _:
                return False
        return True

    def add(self, key: ObjectKey) -> None:
        """Add a record that is to be transferred."""
        self.pending[key] = self.pending.get(key, 0) + 1
        if key.startswith(ACCEPTED):
            self._spool.journal.rules.transferred.add(key)
        self._metrics.spool_pending.set(len(self.pending))
