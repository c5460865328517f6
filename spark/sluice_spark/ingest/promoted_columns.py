"""Add the columns of new promotions to the record tables while an ingest job runs.

The job compares the promotions of the store with what it has added when it starts, and then once a
minute: one listing. Micro-batches read nothing of it. Each goes by the state of its tables, so a
column is filled from the first micro-batch that opens a table with it. A micro-batch that is being
written at that moment meets the commit of the new column, and is written again.
"""

from dataclasses import dataclass, field
from typing import Final

import structlog

from sluice_lake.errors import CommitConflict, TableRefused
from sluice_lake.promoted import add_promoted
from sluice_protocol.clock import Clock
from sluice_protocol.errors import InvalidRecord, OutcomeUnknown, StoreError
from sluice_protocol.fields import KINDS
from sluice_protocol.units import NS_PER_S
from sluice_spark.ingest.fenced_consumers import FencedConsumers
from sluice_store.stored_promotions import StoredPromotions, read_promotions

INTERVAL_S: Final = 60.0

_log = structlog.get_logger("sluice.ingest")


@dataclass(slots=True, kw_only=True)
class PromotedColumns:
    """The promoted columns of one store, for one ingest job."""

    store_url: str
    consumers: FencedConsumers
    clock: Clock
    _checked_ns: int | None = None
    _known: StoredPromotions | None = field(default=None)

    def add_if_due(self) -> None:
        """Add columns if the interval is over; what fails is repeated after the next interval.

        A column that is missing changes no answer, so nothing here stops the job.
        """
        now_ns = self.clock.monotonic_ns()
        if self._checked_ns is not None and now_ns - self._checked_ns < INTERVAL_S * NS_PER_S:
            return
        self._checked_ns = now_ns
        try:
            found = self.consumers.run(lambda store: read_promotions(store, self._known))
            if found is self._known:
                return
            for kind in KINDS:
                add_promoted(self.store_url, kind, found.records)
        except (StoreError, OutcomeUnknown, CommitConflict, TimeoutError) as error:
            _log.info("columns_not_checked", reason=str(error))
            return
        except (TableRefused, InvalidRecord) as error:
            _log.warning("column_not_added", reason=str(error))
            return
        for unreadable in found.unreadable:
            _log.warning("column_not_added", reason=str(unreadable))
        self._known = found
