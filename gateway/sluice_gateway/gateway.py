"""The parts of one worker, and the way of one upload through them."""

from dataclasses import dataclass

import structlog
from aiohttp import web

from sluice_gateway.accept import Acceptor, Run
from sluice_gateway.admit import Budget, check_head
from sluice_gateway.answers import AcceptedAnswer, accepted_answer, conflict_problem
from sluice_gateway.authenticate import authenticate
from sluice_gateway.cache import AcceptedCache, Remembered
from sluice_gateway.decode import FrameDecoder
from sluice_gateway.high_water import HighWaterMarks
from sluice_gateway.lander import Lander
from sluice_gateway.lifecycle import Lifecycle
from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.observe import ObservedStore
from sluice_gateway.principals import PrincipalsFile, Sender
from sluice_gateway.receive import Pace, Received, receive
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.switch import NOTICE_S_MAX
from sluice_gateway.timing import Phases
from sluice_gateway.upload import Upload
from sluice_protocol.acceptance import Accepted, Conflict, Corrupt, RetriesExhausted
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import ErrorCode, InvariantViolated
from sluice_protocol.identity import Identity
from sluice_protocol.keys import quarantine_key
from sluice_protocol.units import NS_PER_S
from sluice_protocol.upload_http import HIGH_WATER_HEADER, RETRY_HEADER, parse_high_water
from sluice_store.conflicts import DecisionsReader
from sluice_web.problems import HttpRefusal, Problem

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Gateway:
    """One worker: the composition root makes it, handlers use it."""

    settings: GatewaySettings
    collector_id: str
    clock: Clock
    ids: IdSource
    metrics: GatewayMetrics
    store: ObservedStore
    principals: PrincipalsFile
    lifecycle: Lifecycle
    budget: Budget
    decoder: FrameDecoder
    cache: AcceptedCache
    acceptor: Acceptor
    decisions: DecisionsReader
    high_water: HighWaterMarks
    lander: Lander | None = None
    looked_at_ns: int | None = None
    """When it last knew that its mode holds, on the monotonic clock; None where nobody looks."""
    switched: bool = False
    unproved: str = ""
    """Why the doctor's newest result forbids acceptance; empty while it is good or skipped."""

    def sender_of(self, request: web.Request) -> Sender:
        """Gives who sent a request.

        Raises:
            Unauthenticated: Nobody knows.
        """
        now_s = self.clock.now_ns() // NS_PER_S
        return authenticate(request, self.principals.current, now_s)

    async def take(self, request: web.Request, phases: Phases) -> AcceptedAnswer | Problem:
        """Carries one upload from its head to its answer, in the order of the protocol.

        Raises:
            SluiceError: The upload is refused; the error's code says how.
        """
        with self.lifecycle.upload():
            sender = self.sender_of(request)
            length_bytes = check_head(request, self.settings.frame_bytes_max)
            with self.budget.take(length_bytes):
                with phases.phase("receive"):
                    received = await receive(request, length_bytes, self._pace())
                known = self.cache.find(received.digest)
                if known is not None:
                    answer = self._known(sender, received, known)
                    self._note_high_water(request, known.identity)
                    return answer
                upload = await self._validate(request, sender, received, phases)
                settled = await self._settle(upload, phases)
                if isinstance(settled, AcceptedAnswer):
                    self._note_high_water(request, upload.identity)
                return settled

    def _note_high_water(self, request: web.Request, who: Identity) -> None:
        """Keeps what the agent says it has made; another form of the header is ignored."""
        self.high_water.note(who, parse_high_water(request.headers.get(HIGH_WATER_HEADER)))

    @property
    def mode_known(self) -> bool:
        """Whether the authority was seen lately in the mode of this gateway."""
        if self.switched or self.looked_at_ns is None:
            return not self.switched
        return self.clock.monotonic_ns() - self.looked_at_ns < NOTICE_S_MAX * NS_PER_S

    def _check_mode_known(self) -> None:
        """Keeps out of a mode that may have been switched unseen.

        Raises:
            HttpRefusal: It was switched, or nobody could look for too long.
        """
        if not self.mode_known:
            raise HttpRefusal(
                ErrorCode.STORE_UNAVAILABLE,
                "the authority was switched or cannot be read: try another gateway",
            )

    def _known(self, sender: Sender, received: Received, known: Remembered) -> AcceptedAnswer:
        """Answers bytes that this worker has accepted before, without decoding them again."""
        self._check_owner(sender, known.identity.agent_id, known.identity.boot_id)
        self.metrics.cache_hits.inc()
        verdict = Accepted(duplicate=True, accepted_at_ns=known.accepted_at_ns)
        return accepted_answer(known.identity, received.digest, verdict, self.collector_id)

    def _check_owner(self, sender: Sender, agent_id: str, boot_id: str) -> None:
        """Stands before every store call.

        Raises:
            HttpRefusal: The agent is not the sender's, or is quarantined.
        """
        if agent_id not in sender.agents:
            raise HttpRefusal(ErrorCode.FORBIDDEN_AGENT, "")
        if (agent_id, boot_id) in self.decisions.current.quarantined:
            raise HttpRefusal(ErrorCode.IDENTITY_QUARANTINED, "")

    def _pace(self) -> Pace:
        return Pace(
            grace_s=self.settings.body_grace_s, rate_min=self.settings.body_rate_min_bytes_per_s
        )

    async def _validate(
        self, request: web.Request, sender: Sender, received: Received, phases: Phases
    ) -> Upload:
        with phases.phase("validate"):
            envelope = await self.decoder.decode(received.body)
        self._check_owner(sender, envelope.agent_id, envelope.boot_id)
        return Upload(
            frame=received.body,
            digest=received.digest,
            identity=envelope.identity,
            envelope=envelope,
            principal=sender.principal,
            attempt_id=self.ids.ulid(),
            sent_before=request.headers.get(RETRY_HEADER) == "1",
        )

    async def _settle(self, upload: Upload, phases: Phases) -> AcceptedAnswer | Problem:
        self._check_mode_known()  # here: a body may have been coming in since before a switch
        run = await self.acceptor.accept(upload)
        phases.add(run.phases_s)
        self._count(run)
        if self.lander is not None:
            self.lander.note(upload, run)
        return self._answer(upload, run)

    def _count(self, run: Run) -> None:
        if run.own_write_met:
            self.metrics.own_write_412.inc()
        if run.healed:
            self.metrics.healed.inc()

    def _answer(self, upload: Upload, run: Run) -> AcceptedAnswer | Problem:
        match run.verdict:
            case Accepted() as verdict:
                entry = Remembered(identity=upload.identity, accepted_at_ns=verdict.accepted_at_ns)
                self.cache.remember(upload.digest, entry)
                if not verdict.duplicate:
                    self.metrics.accepted_bytes.inc(len(upload.frame))
                return accepted_answer(upload.identity, upload.digest, verdict, self.collector_id)
            case Conflict():
                return self._conflict(upload, run)
            case Corrupt(reason=reason):
                log.error("corrupt object", identity=upload.identity, reason=reason)
                raise HttpRefusal(
                    ErrorCode.CORRUPT_OBJECT, "a stored object is damaged: see the log"
                )
            case RetriesExhausted():
                raise spent_refusal(run)

    def _conflict(self, upload: Upload, run: Run) -> Problem:
        if run.conflict is None:
            raise InvariantViolated("a conflict is told only with its quarantine manifest")
        log.warning("identity conflict", identity=upload.identity, submitted=upload.digest)
        return conflict_problem(run.conflict, quarantine_key(upload.identity, upload.digest))


def spent_refusal(run: Run) -> HttpRefusal:
    """Gives the 503 of an upload whose tries or time are spent."""
    if run.unsure or run.failure is None:
        return HttpRefusal(
            ErrorCode.OUTCOME_UNKNOWN, "nobody knows whether it landed: send the same bytes again"
        )
    log.warning("store unavailable", reason=str(run.failure))
    return HttpRefusal(
        ErrorCode.STORE_UNAVAILABLE, "the store did not answer: send the same bytes again"
    )
