"""What the journal route reports: lapsed gateway processes, and how far behind each journal is."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

import structlog

from sluice_reconciler.journals.progress import ProcessJournal, entries_waiting
from sluice_reconciler.metrics import ReconcilerMetrics, StoreClock

log = structlog.get_logger()

GATEWAYS_LABELLED: Final = 100
"""Gateways with a separate label, at most."""
OTHER_GATEWAYS: Final = "(other)"
"""The label that the other gateways share."""


class JournalReport:
    """Logs each lapsed process once, and sets the gauges of the journals."""

    def __init__(self, metrics: ReconcilerMetrics, clock: StoreClock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._lapsed: set[str] = set()

    def observe(self, journals: Mapping[str, ProcessJournal], ended: Collection[str]) -> None:
        """Report the state after a listing.

        Args:
            journals: The journal of each registered process.
            ended: The processes whose journals no longer bound the frontier.
        """
        self._report_lapsed(journals, ended)
        self._set_lags(journals, ended)

    def _report_lapsed(
        self, journals: Mapping[str, ProcessJournal], ended: Collection[str]
    ) -> None:
        lapsed = {process for process, one in journals.items() if one.is_replaced()}
        for process in lapsed - self._lapsed - set(ended):
            journal = journals[process]
            log.warning(
                "gateway_process_lapsed",
                gateway=journal.registration.collector_id,
                process=process,
                complete_through_unix_ns=journal.complete_through_ns,
            )
        self._lapsed = lapsed

    def _set_lags(self, journals: Mapping[str, ProcessJournal], ended: Collection[str]) -> None:
        self._metrics.journal_entries_waiting.set(entries_waiting(journals.values()))
        lags: defaultdict[str, float] = defaultdict(float)
        for process, journal in journals.items():
            if process not in ended:
                name = journal.registration.collector_id
                label = name if name in lags or len(lags) < GATEWAYS_LABELLED else OTHER_GATEWAYS
                lags[label] = max(lags[label], self._clock.age_s(journal.complete_through_ns))
        self._metrics.journal_lag.clear()
        for label, lag_s in lags.items():
            self._metrics.journal_lag.labels(label).set(lag_s)
