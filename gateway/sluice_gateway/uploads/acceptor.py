"""A validated upload, its acceptance, the records that it creates, and the responses to it.

`Acceptor` is the shell around the acceptance state machine: it performs an action, reports the
outcome and repeats. It decides nothing. Every try of one upload writes the same bytes. The pauses
between tries have jitter; the machine bounds the tries and `time_s_max` the total time. Source:
ADR 2.
"""

import asyncio
import random  # noqa: TID251 - the type of the seeded source, which the caller passes
from dataclasses import dataclass, field
from typing import Final, Literal, assert_never

import msgspec
import structlog

from sluice_protocol.acceptance import (
    Accepted,
    BlobHashed,
    Conflict,
    CreateBlob,
    CreateManifest,
    CreateQuarantine,
    HashBlob,
    HeadBlob,
    HeadQuarantine,
    ManifestRead,
    ManifestUnreadable,
    Observation,
    Offer,
    OverwriteBlob,
    OverwriteRefused,
    Progress,
    ReadManifest,
    RetriesExhausted,
    StoreRequest,
    Verdict,
    begin,
    cacheable_until_ns,
    step,
)
from sluice_protocol.authority import Authority
from sluice_protocol.clock import Clock
from sluice_protocol.conflicts import ConflictName, DecisionAction, Decisions
from sluice_protocol.errors import (
    ChecksumRefused,
    ErrorCode,
    InvalidRecord,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from sluice_protocol.frame import FRAME_VERSION, WIRE_VERSION, Envelope
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    accepted_key,
    blob_key,
    digest_of,
    quarantine_by_blob_key,
    quarantine_key,
)
from sluice_protocol.manifests import (
    AcceptedManifest,
    ConflictManifest,
    decode_accepted,
    encode_record,
    encode_reference,
)
from sluice_protocol.outcomes import (
    Found,
    NotFound,
    Unknown,
    UnknownReason,
)
from sluice_protocol.units import Digest, UnixNs
from sluice_store.port import ObjectStore
from sluice_web.problems import Problem, problem_of


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A frame that was read, validated and found to belong to its sender.

    Attributes:
        attempt_id: ULID of this upload, the same in all its tries.
        sent_before: Whether the agent reports that it sent these bytes before.
        parts: The requests of a combined batch, as the manifest lists them; empty for others.
        manifest: The bytes of the manifest of a batch that a spool accepted, written unchanged;
            None where this gateway creates the manifest.
    """

    frame: bytes
    digest: Digest
    identity: Identity
    envelope: Envelope
    principal: str
    attempt_id: str
    sent_before: bool = False
    parts: str = ""
    manifest: bytes | None = None


def accepted_manifest(
    upload: Upload, accepted_at_ns: UnixNs, collector_id: str
) -> AcceptedManifest:
    """Return the manifest that claims the identity for these bytes; the same in every try."""
    envelope, identity = upload.envelope, upload.identity
    return AcceptedManifest(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256=upload.digest,
        frame_bytes=len(upload.frame),
        raw_blob_key=blob_key(upload.digest),
        accepted_at_unix_ns=accepted_at_ns,
        collector_id=collector_id,
        wire_version=WIRE_VERSION,
        frame_version=FRAME_VERSION,
        attempt_id=upload.attempt_id,
        kind=envelope.kind,
        record_count=envelope.count,
        min_ts_unix_ns=envelope.min_ts_ns,
        max_ts_unix_ns=envelope.max_ts_ns,
        principal=upload.principal,
        parts=upload.parts or msgspec.UNSET,
    )


def conflict_manifest(
    upload: Upload, owner: Digest, observed_at_ns: UnixNs, collector_id: str
) -> ConflictManifest:
    """Return the record of a refusal: the owner of the identity and the refused bytes."""
    identity = upload.identity
    return ConflictManifest(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        accepted_manifest_key=accepted_key(identity),
        accepted_raw_blob_key=blob_key(owner),
        accepted_frame_sha256=owner,
        submitted_raw_blob_key=blob_key(upload.digest),
        submitted_frame_sha256=upload.digest,
        observed_at_unix_ns=observed_at_ns,
        collector_id=collector_id,
    )


class AcceptedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a 200: the batch is accepted, and the agent may delete it.

    `frame_sha256` is the digest that owns the identity, as the manifest at `manifest_key` decides.
    `duplicate` is true if it was accepted before this upload. The time is that of the store's
    clock.
    """

    status: Literal["accepted"] = "accepted"
    duplicate: bool
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    frame_sha256: str
    manifest_key: str
    accepted_at_unix_ns: int
    collector_id: str

    @property
    def outcome(self) -> str:
        """The label of `sluice_accepts_total`."""
        return "duplicate" if self.duplicate else "new"


def accepted_response(
    identity: Identity, digest: Digest, verdict: Accepted, collector_id: str
) -> AcceptedResponse:
    """Return the body of a 200."""
    return AcceptedResponse(
        duplicate=verdict.duplicate,
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256=digest,
        manifest_key=accepted_key(identity),
        accepted_at_unix_ns=verdict.accepted_at_ns,
        collector_id=collector_id,
    )


class ConflictProblem(Problem, frozen=True, kw_only=True):
    """The body of a 409: the refused upload and the bytes that own its identity.

    The accepted values are those of the bytes that own the identity, the submitted ones those of
    the refused bytes. `quarantine_key` is the record of the refusal. `resolution` is the decision
    of an operator about this conflict, or null while it is open.
    """

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    accepted_frame_sha256: str
    submitted_frame_sha256: str
    accepted_raw_blob_key: str
    submitted_raw_blob_key: str
    accepted_manifest_key: str
    quarantine_key: str
    resolution: DecisionAction | None = None


def conflict_problem(
    conflict: ConflictManifest, name: ConflictName, decisions: Decisions
) -> ConflictProblem:
    """Return the problem document of a 409 from the quarantine manifest and the known decisions."""
    decision = decisions.by_conflict.get(name.id)
    problem = problem_of(
        ErrorCode.IDENTITY_CONFLICT,
        "other bytes own this identity: park the batch and inform an operator",
    )
    return ConflictProblem(
        **msgspec.structs.asdict(problem),
        agent_id=conflict.agent_id,
        boot_id=conflict.boot_id,
        seq_start=conflict.seq_start,
        seq_end=conflict.seq_end,
        accepted_frame_sha256=conflict.accepted_frame_sha256,
        submitted_frame_sha256=conflict.submitted_frame_sha256,
        accepted_raw_blob_key=conflict.accepted_raw_blob_key,
        submitted_raw_blob_key=conflict.submitted_raw_blob_key,
        accepted_manifest_key=conflict.accepted_manifest_key,
        quarantine_key=name.key,
        resolution=None if decision is None else decision.action,
    )


BACKOFF_S_FIRST: Final = 0.05
BACKOFF_S_MAX: Final = 2.0
HASH_INLINE_BYTES_MAX: Final = 1024 * 1024

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class AcceptanceRun:
    """The course of one upload, updated while it runs.

    Attributes:
        unsure: Whether the outcome of a write is unknown, or time ran out during a call.
        own_write_met: Whether our own manifest was read after an unknown outcome.
        manifest: The bytes of the identity's manifest, as created or read last.
        cacheable_ns: How long the verdict may be repeated from memory, from the store's last
            response about the blob.
    """

    verdict: Verdict = field(default_factory=RetriesExhausted)
    conflict: ConflictManifest | None = None
    phases_s: dict[str, float] = field(default_factory=dict)
    unsure: bool = False
    calling: bool = False
    failure: StoreError | None = None
    own_write_met: bool = False
    healed: bool = False
    manifest: bytes = b""
    cacheable_ns: int = 0


class Acceptor:
    """Accepts uploads into one authority."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        authority: Authority,
        collector_id: str,
        clock: Clock,
        rng: random.Random,
        time_s_max: float,
    ) -> None:
        self._store = store
        self._window_ns = authority.proof_window_ns
        self._collector_id = collector_id
        self._clock = clock
        self._rng = rng
        self._time_s_max = time_s_max

    async def accept(self, upload: Upload) -> AcceptanceRun:
        """Run one upload until its verdict, or until a permanent refusal of the store."""
        run = AcceptanceRun()
        try:
            async with asyncio.timeout(self._time_s_max):
                await self._drive(upload, run)
        except TimeoutError:
            run.unsure = run.unsure or run.calling
        return run

    async def _drive(self, upload: Upload, run: AcceptanceRun) -> None:
        offer = Offer(
            identity=upload.identity,
            digest=upload.digest,
            size_bytes=len(upload.frame),
            attempt_id=upload.attempt_id,
            window_ns=self._window_ns,
            sent_before=upload.sent_before,
        )
        now = begin(offer)
        while not isinstance(now.action, Verdict):
            seen = await self._observe(upload, now, now.action, run)
            then = step(now, seen)
            if then.tries > now.tries and not isinstance(then.action, RetriesExhausted):
                await self._clock.sleep(self._backoff_s(then.tries))
            now = then
        run.healed = now.healed
        if now.proved_at_ns is not None and now.date_ns is not None:
            until_ns = cacheable_until_ns(now.proved_at_ns, now.offer.window_ns)
            run.cacheable_ns = until_ns - now.date_ns
        if isinstance(now.action, Conflict):
            await self._refer(upload)
        run.verdict = now.action

    def _backoff_s(self, tries: int) -> float:
        ceiling_s: float = min(BACKOFF_S_MAX, BACKOFF_S_FIRST * 2**tries)
        return ceiling_s * (0.5 + self._rng.random() / 2)

    async def _observe(
        self, upload: Upload, now: Progress, action: StoreRequest, run: AcceptanceRun
    ) -> Observation:
        started_ns = self._clock.monotonic_ns()
        run.calling = True
        try:
            seen = await self._perform(upload, now, action, run)
        except (StoreUnavailable, ChecksumRefused) as error:
            run.failure, run.calling = error, False
            return Unknown(reason=UnknownReason.SERVER_ERROR, detail=str(error))
        except StoreDenied as error:
            if isinstance(action, OverwriteBlob):
                return OverwriteRefused(reason=str(error))
            raise
        finally:
            spent_s = (self._clock.monotonic_ns() - started_ns) / 1e9
            phase = _PHASES[type(action)]
            run.phases_s[phase] = run.phases_s.get(phase, 0.0) + spent_s
        run.calling = False
        run.unsure = run.unsure or isinstance(seen, Unknown)
        return seen

    async def _perform(
        self, upload: Upload, now: Progress, action: StoreRequest, run: AcceptanceRun
    ) -> Observation:
        match action:
            case CreateBlob():
                key = blob_key(upload.digest)
                return await self._store.create(key, upload.frame, sha256=upload.digest)
            case OverwriteBlob() | HeadBlob() | HashBlob():
                return await self._on_blob(upload, action)
            case ReadManifest():
                return await self._read_manifest(now.offer, run)
            case CreateManifest():
                made = accepted_manifest(upload, action.accepted_at_ns, self._collector_id)
                run.manifest = upload.manifest or encode_record(made)  # the same in every try
                return await self._store.create(accepted_key(upload.identity), run.manifest)
            case CreateQuarantine(accepted_digest=owner, observed_at_ns=at_ns):
                run.conflict = conflict_manifest(upload, owner, at_ns, self._collector_id)
                key = quarantine_key(upload.identity, upload.digest)
                return await self._store.create(key, encode_record(run.conflict))
            case HeadQuarantine():
                return await self._store.head(quarantine_key(upload.identity, upload.digest))
            case _ as never:
                assert_never(never)

    async def _on_blob(
        self, upload: Upload, action: OverwriteBlob | HeadBlob | HashBlob
    ) -> Observation:
        key = blob_key(upload.digest)
        match action:
            case OverwriteBlob():
                return await self._store.overwrite(key, upload.frame, sha256=upload.digest)
            case HeadBlob():
                return await self._store.head(key)
            case HashBlob():
                return await self._hash_blob(upload)

    async def _hash_blob(self, upload: Upload) -> Observation:
        found = await self._store.get(blob_key(upload.digest))
        if isinstance(found, NotFound):
            return found
        small = len(found.body) <= HASH_INLINE_BYTES_MAX
        digest = digest_of(found.body) if small else await asyncio.to_thread(digest_of, found.body)
        return BlobHashed(info=found.info, digest=digest)

    async def _read_manifest(self, offer: Offer, run: AcceptanceRun) -> Observation:
        key = accepted_key(offer.identity)
        found = await self._store.get(key)
        if isinstance(found, NotFound):
            return found
        seen = read_manifest(found)
        run.manifest = found.body
        own = isinstance(seen, ManifestRead) and seen.attempt_id == offer.attempt_id
        run.own_write_met = run.own_write_met or own
        return seen

    async def _refer(self, upload: Upload) -> None:
        """Write the reverse reference of a quarantined blob; the reconciler repairs a lost one."""
        key = quarantine_by_blob_key(upload.digest, upload.identity)
        body = encode_reference(quarantine_key(upload.identity, upload.digest))
        try:
            await self._store.create(key, body)
        except StoreError as error:
            log.warning("quarantine_reference_not_written", key=key, reason=str(error))


def read_manifest(found: Found) -> ManifestRead | ManifestUnreadable:
    """Return the observation of an object under the key of an identity."""
    try:
        manifest = decode_accepted(found.info.key, found.body)
    except InvalidRecord as error:
        return ManifestUnreadable(reason=str(error))
    return ManifestRead(
        digest=manifest.digest,
        attempt_id=manifest.attempt_id,
        accepted_at_ns=manifest.accepted_at_ns,
        last_modified_ns=found.info.last_modified_ns,
        date_ns=found.info.date_ns,
    )


_PHASES: Final[dict[type[StoreRequest], str]] = {
    CreateBlob: "blob",
    HeadBlob: "blob",
    HashBlob: "blob",
    OverwriteBlob: "blob",
    ReadManifest: "manifest",
    CreateManifest: "manifest",
    CreateQuarantine: "quarantine",
    HeadQuarantine: "quarantine",
}
