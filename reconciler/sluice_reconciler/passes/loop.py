"""When full passes run, and what each causes.

Without journals, passes follow each other, and each is followed by a pause of four times its
duration. With journals they are the safety net: one a minute, rarer in a large store, one as soon
as a gateway is late, one when it is certainly dead, and the continuation of one that was
interrupted.
"""

from functools import partial
from typing import Final

import structlog

from sluice_protocol.errors import SluiceError
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.context import ReconcilerContext
from sluice_reconciler.discovery import PASS_STEP_S, DiscoveryClaim
from sluice_reconciler.journals.route import JournalRoute, count_unnamed
from sluice_reconciler.lanes.worker import Takeover
from sluice_reconciler.loop_health import Loop
from sluice_reconciler.passes.full_pass import FullPass, PassReport
from sluice_reconciler.passes.progress import (
    NextPass,
    PassOptions,
    PassProgress,
    PassRecord,
    decide_next_pass,
    safety_interval_s,
)

log = structlog.get_logger()

REST_TO_WORK: Final = 4
"""Pause after a full pass, as a multiple of its duration."""
JOURNALED_REST_MAX_S: Final = 60.0
"""Pause after a full pass while journals decide the frontier, at most: it waits for the next."""
TICK_S: Final = 1.0
"""Time between two decisions whether a pass starts, at most."""
FAILED_REST_S: Final = 3.0
"""Pause after a pass that failed."""
PASS_WORK_S: Final = 1.0
"""Time that a pass over an empty store works, at most. Beyond this and the time of its pages, it
waited for the store, and an outage must not lengthen the pause after a pass.
"""
KEY_WORK_S: Final = 0.0005
"""Time that one listed key costs a pass, at most: a page of 1,000 takes half a second."""


def hand_over_of(record: PassRecord | None) -> tuple[str, int, int] | None:
    """Return what identifies the last hand-over of a pass; None if there was none."""
    if record is None or not record.handed_over:
        return None
    return record.writer, record.began_unix_ns, record.handed_over


def worked_s(took_s: float, listed: int) -> float:
    """Return for how long a pass worked, without its waits for the store, seconds."""
    return min(took_s, PASS_WORK_S + KEY_WORK_S * listed)


def rest_s(
    worked_s: float | None, *, journaled: bool, interval_s: float, wanted: bool = False
) -> float:
    """Return the pause after a pass; it is shorter while journals decide the frontier.

    `worked_s` is None if the pass failed. `interval_s` is the least pause without journals. If a
    journal must be replaced (`wanted`), half of the time may be spent in passes.
    """
    if worked_s is None:
        return FAILED_REST_S
    if journaled and wanted:
        return min(worked_s, JOURNALED_REST_MAX_S)
    if journaled:
        return min(REST_TO_WORK * worked_s, JOURNALED_REST_MAX_S)
    return max(REST_TO_WORK * worked_s, interval_s)


class PassLoop:
    """Makes full passes until cancelled."""

    def __init__(
        self,
        context: ReconcilerContext,
        full_pass: FullPass,
        progress: PassProgress,
        journals: JournalRoute,
    ) -> None:
        self._context = context
        self.full_pass = full_pass
        self._progress = progress
        self._journals = journals
        self._ended_at_ns: int | None = None
        self._worked_s: float | None = None
        self.whole: PassReport | None = None
        """The last report of a pass that this process made from its beginning."""
        self._helped: tuple[str, int, int] | None = None

    async def run(self) -> None:
        """Make every pass that is due; store errors are logged, and the pass is retried."""
        await self._journals.tried.wait()
        clock, settings = self._context.runtime.clock, self._context.settings
        while True:
            await self._run_if_due()
            await clock.sleep(min(TICK_S, settings.pass_interval_s))

    def _rests(self) -> bool:
        """Return True during the pause after a pass."""
        if self._ended_at_ns is None:
            return False
        pause_s = rest_s(
            self._worked_s,
            journaled=self._context.registry.is_journaled,
            interval_s=self._context.settings.pass_interval_s,
            wanted=self._journals.wanted_pass_ns() is not None,
        )
        rested_ns = self._context.runtime.clock.monotonic_ns() - self._ended_at_ns
        return rested_ns < pause_s * NS_PER_S

    async def _run_if_due(self) -> None:
        health, metrics, clock = (
            self._context.health,
            self._context.metrics,
            self._context.runtime.clock,
        )
        started_ns = clock.monotonic_ns()
        try:
            plan = await self._decide()
            if plan is None:
                return
            report = await self.run_once(None, plan) if plan.start else None
        except SluiceError as error:
            metrics.passes.labels("failed").inc()
            health.fail(Loop.PASSES, error)
            self._ended_at_ns, self._worked_s = clock.monotonic_ns(), None
            return
        # Also if no pass is due: a failed one is due until it has ended.
        health.succeed(Loop.PASSES)
        if report is not None:
            health.passes += 1
            metrics.passes.labels("done").inc()
            self._ended_at_ns = clock.monotonic_ns()
            took_s = (self._ended_at_ns - started_ns) / NS_PER_S
            self._worked_s = worked_s(took_s, report.listed)

    async def _decide(self) -> NextPass | None:
        """Decide whether a pass starts now; return None during the pause after the last one."""
        context = self._context
        if not context.registry.is_journaled and self._rests():
            return None
        await self._progress.read()
        await self._help()
        if self._rests():
            return None
        stored = self._progress.record
        if not context.registry.is_journaled:
            is_whole = stored is None or stored.ended or stored.left or self._progress.rival_runs
            return NextPass(start=True, resume=not is_whole, urgent=True)
        return decide_next_pass(
            context.clock.now_ns(),
            stored,
            wanted_from_ns=self._journals.wanted_pass_ns(),
            interval_s=safety_interval_s(
                context.discovery.record.listed, context.settings.journaled_pass_interval_s
            ),
            rival_runs=self._progress.rival_runs,
        )

    async def _help(self) -> None:
        """Process what the pass of another reconciler has handed over since the last call."""
        progress = self._progress
        found = hand_over_of(progress.record) if progress.rival_runs else None
        if found is not None and found != self._helped:
            await self.full_pass.hand_over.take()
            self._helped = found

    async def run_once(self, takeover: Takeover | None, plan: NextPass | None = None) -> PassReport:
        """Make one pass, publish what it has shown, and set the metrics.

        Without a plan, make a single pass without stored progress.
        """
        context = self._context
        started_ns = context.runtime.clock.monotonic_ns()
        pending = context.pending.known()
        context.live.begin_pass()
        context.registry.begin_pass()
        options = PassOptions() if plan is None else self._options(plan)
        report = await self.full_pass.run(takeover, options)
        # Another process listed the first part of a pass that is resumed.
        context.live.end_pass(is_whole=plan is None or not plan.resume)
        await self._publish(report)
        if plan is not None:
            await self._end_progress(report)
        if not report.outcome.left:
            for stage, keys in pending.items():
                context.pending.end(stage, keys)
        self._observe(report, context.runtime.clock.monotonic_ns() - started_ns)
        return report

    def _options(self, plan: NextPass) -> PassOptions:
        context = self._context
        options = PassOptions(
            resume=self._progress.record if plan.resume else None, progress=self._progress
        )
        if context.registry.is_journaled:
            options.unnamed = partial(count_unnamed, self._journals.named_through())
            options.retry_left = True
            if not plan.urgent and context.settings.pass_pages_per_s:
                options.pace_s = 1 / context.settings.pass_pages_per_s
        return options

    async def _publish(self, report: PassReport) -> None:
        context, through_ns = self._context, report.complete_through_ns
        if through_ns is None:
            return
        shown = () if await self._journals.has_open_spool() else range(context.authority.lanes)
        claim = DiscoveryClaim(
            lanes=dict.fromkeys(shown, through_ns),
            pass_began_ns=through_ns,
            listed=report.listed,
            pass_queues=report.queues,
        )
        await context.discovery.claim(claim, step_s=PASS_STEP_S)
        context.registry.end_pass(through_ns)

    async def _end_progress(self, report: PassReport) -> None:
        """Store that the pass has ended, where that decides when the next one begins."""
        context = self._context
        stored = self._progress.record
        if context.registry.is_journaled or (stored is not None and not stored.ended):
            left = report.complete_through_ns is None
            await self._progress.save(
                PassRecord(
                    began_unix_ns=report.began_ns,
                    spans=(),
                    left=left,
                    ended=True,
                    missed=report.missed,
                    cuts=report.cuts,
                )
            )

    def _observe(self, report: PassReport, took_ns: int) -> None:
        metrics, done = self._context.metrics, report.outcome
        metrics.pass_seconds.set(took_ns / NS_PER_S)
        if report.is_whole:
            self.whole = report
            metrics.oldest_gap.set(report.boots.oldest_gap_s)
            metrics.tail_missing.set(report.boots.tail_missing)
        metrics.held.set(report.held_back)
        metrics.missed_by_journals.inc(report.missed)
        if report.missed:
            log.warning("batches_missed_by_journals", batches=report.missed)
        if done.sound or done.held_back:
            log.info(
                "full_pass_done",
                listed=report.listed,
                enqueued=done.enqueued,
                indexed=done.indexed,
                left=done.left,
                held=report.held_back,
                took_ms=took_ns // 1_000_000,
            )
