"""Accepts uploads into a spool, and remembers the records that its transfer has to move.

A batch whose local manifest may have expired is accepted into the authority instead, which decides
it by the rules of every upload. Source: ADR 16.
"""

from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.spool.expiry import SpoolExpiry
from sluice_gateway.spool.records import SpoolBlobs, SpoolStores
from sluice_gateway.uploads.acceptor import AcceptanceRun, Acceptor
from sluice_gateway.uploads.upload import Upload
from sluice_protocol.acceptance import Accepted, Conflict
from sluice_protocol.errors import BadUsage, ErrorCode
from sluice_protocol.keys import ACCEPTED, accepted_key, blob_key, quarantine_key
from sluice_protocol.units import ObjectKey
from sluice_web.problems import HttpRefusal


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
