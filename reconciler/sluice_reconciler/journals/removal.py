"""Removal of journals and registrations that nothing needs any more.

A journal object is removed when all of this is true:

- a full pass that began after it was written has ended: every entry of it is enqueued or held;
- its number is published, or the process has ended. A process that comes back after it was replaced
  writes objects that no reconciler reads any more;
- the retry horizon has passed since it was written;
- it is not the newest processed object of a process that may still write.

The registration of a process is removed last, when its journal is empty and the process has ended.
Objects are removed in the order of their numbers, so what exists is always the end of a journal. A
run that is interrupted is continued by the next one. In a store without versioning nothing is
removed. Growth: one object a second and gateway, for the retry horizon and the time until the next
full pass.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.journals import journal_prefix, parse_journal_key, registration_key
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_reconciler.context import ReconcilerContext
from sluice_reconciler.journals.progress import BREAK_MARGIN_S, ProcessJournal
from sluice_store.port import ListPage
from sluice_store.retry import CurrentDeletion, delete_current_version

log = structlog.get_logger()

REMOVAL_INTERVAL_S: Final = 10.0
"""Pause between two removals of journals, seconds."""

REMOVED_MAX: Final = 2_000
"""Objects that one run deletes, at most."""

_DELETED_TOGETHER: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalLimits:
    """What may be removed, by the store's clock and the authority's retry horizon.

    `pass_began_ns` is when the last complete full pass began; None without such a pass.
    """

    pass_began_ns: UnixNs | None
    now_ns: UnixNs
    horizon_ns: int

    def allows(self, written_ns: UnixNs) -> bool:
        """Return True if an object that was written then is old enough and covered by a pass."""
        if self.pass_began_ns is None:
            return False
        covered = self.pass_began_ns >= written_ns + int(BREAK_MARGIN_S * NS_PER_S)
        return covered and self.now_ns >= written_ns + self.horizon_ns


def plan_objects(
    page: ListPage, limits: RemovalLimits, *, through: float, keep: int | None
) -> list[ObjectKey]:
    """Return the objects at the beginning of a page that may be removed, in order.

    `through` is the published number, or infinity if the process has ended; `keep` is the number
    that is kept while the process may still write, else None.
    """
    planned: list[ObjectKey] = []
    for one in page.objects:
        try:
            number = parse_journal_key(one.key).number
        except InvalidRecord:
            continue  # not written by a gateway; it is kept
        if number > through or number == keep or not limits.allows(one.last_modified_ns):
            break
        planned.append(one.key)
    return planned


class JournalRemoval:
    """Removes a bounded number of objects per run."""

    def __init__(self, context: ReconcilerContext) -> None:
        self._context = context
        self._is_unversioned = False

    async def run(self, journals: Iterable[ProcessJournal], ended: Collection[str]) -> int:
        """Remove what may be removed, of any process; return the number of deleted objects.

        `ended` are the processes whose journals no longer bound the published time. After an error,
        the next run continues.
        """
        record = self._context.discovery.record
        began_ns = record.pass_began_unix_ns
        limits = RemovalLimits(
            pass_began_ns=None if began_ns is None else UnixNs(began_ns),
            now_ns=self._context.clock.now_ns(),
            horizon_ns=self._context.authority.retry_horizon_ns,
        )
        removed, self._is_unversioned = 0, False
        for journal in sorted(journals, key=lambda one: one.process):
            if removed >= REMOVED_MAX or self._is_unversioned:
                break
            if limits.allows(UnixNs(journal.registration.started_at_unix_ns)):
                has_ended = journal.process in ended and limits.allows(journal.written_ns)
                left = REMOVED_MAX - removed
                removed += await self._remove_of(journal, limits, left, has_ended=has_ended)
        if removed:
            log.info("journals_removed", objects=removed)
            self._context.metrics.journals_removed.inc(removed)
        return removed

    async def _remove_of(
        self,
        journal: ProcessJournal,
        limits: RemovalLimits,
        deletes_max: int,
        *,
        has_ended: bool,
    ) -> int:
        published = self._context.discovery.record.journals.get(journal.process, 0)
        through, keep = (math.inf, None) if has_ended else (published, published)
        planned: list[ObjectKey] = []
        is_empty = True
        async for page in self._context.store.list(journal_prefix(journal.process)):
            of_page = plan_objects(page, limits, through=through, keep=keep)
            planned += of_page
            if len(of_page) < len(page.objects):
                is_empty = False
            if not is_empty or len(planned) >= deletes_max:
                is_empty = is_empty and page.last and len(planned) <= deletes_max
                break
        deleted = await self._delete(planned[:deletes_max])
        is_over = has_ended and not journal.pending
        if is_over and is_empty and deleted == len(planned):
            deleted += await self._delete([registration_key(journal.process)])
        return deleted

    async def _delete(self, keys: Sequence[ObjectKey]) -> int:
        """Delete the current objects in order; stop at the first that may still exist.

        The first one is deleted alone: it shows whether the store has versions.
        """
        step, deleted = _DELETED_TOGETHER, 0
        delete = partial(delete_current_version, self._context.store)
        for part in (keys[:1], *(keys[at : at + step] for at in range(1, len(keys), step))):
            outcomes = await self._context.requests.each(part, delete)
            deleted += sum(one.is_gone for one in outcomes)
            self._is_unversioned = CurrentDeletion.UNVERSIONED in outcomes
            if not all(one.is_gone for one in outcomes):
                break
        return deleted
