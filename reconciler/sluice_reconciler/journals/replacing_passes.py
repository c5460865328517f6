"""What journals need of full passes, and what a full pass finds that journals should have named.

Pure: no I/O, clock or randomness.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from sluice_protocol.journals import JOURNAL_REPLACED_AFTER_S, LATE_S
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_reconciler.journals.progress import BREAK_MARGIN_S, ProcessJournal

LOOK_BACK_MAX: Final = 200_000
"""Most manifests of a store in which a pass begins as soon as a process is late. It lists 200 pages
at most; in a larger store only the pass that replaces the journal looks for its batches."""
ACKNOWLEDGED_S: Final = 120.0
"""Time from the acceptance of a batch until its gateway has acknowledged or abandoned it. An entry
is journaled only with the acknowledgement."""


def wanted_pass_ns(
    journals: Iterable[ProcessJournal], ended: Collection[str], now_ns: UnixNs, manifests: int
) -> UnixNs | None:
    """Return when a full pass must begin to replace a journal; None if none is needed now.

    Args:
        journals: The journal of each registered process.
        ended: The processes whose journals no longer bound the frontier.
        now_ns: The store's clock.
        manifests: Number of manifests that the last full pass listed.
    """
    times = (at for one in journals for at in _replaced_from_ns(one, ended, manifests))
    return max((at for at in times if at <= now_ns), default=None)


def _replaced_from_ns(
    journal: ProcessJournal, ended: Collection[str], manifests: int
) -> Iterator[UnixNs]:
    """Yield when a full pass may begin, for each reason for one.

    A pass that begins when a process is late finds what a killed gateway has not reported. Only one
    that begins after `JOURNAL_REPLACED_AFTER_S` proves that nothing more follows.
    """
    if journal.process not in ended:
        if journal.is_replaced():
            yield UnixNs(journal.written_ns + int(JOURNAL_REPLACED_AFTER_S * NS_PER_S))
        elif journal.is_silent(LATE_S) and manifests <= LOOK_BACK_MAX:
            yield UnixNs(journal.written_ns + int(LATE_S * NS_PER_S))
    if journal.broken is not None:
        yield journal.broken.healed_from_ns
    for one in journal.waiting:
        if one.lost:
            yield UnixNs(one.written_ns + int(BREAK_MARGIN_S * NS_PER_S))


def named_batches(journals: Iterable[ProcessJournal], ended: Collection[str]) -> "NamedBatches":
    """Return what the journals name up to now; take it before the lanes are read."""
    through: dict[str, float] = {}
    for journal in journals:
        name = journal.registration.collector_id
        is_over = journal.process in ended or journal.is_replaced()
        at_ns = float("inf") if is_over else journal.complete_through_ns
        through[name] = min(through.get(name, float("inf")), at_ns)
    return NamedBatches(through)


class NamedBatches:
    """What the journals of each gateway name, to count what they missed."""

    def __init__(self, through_ns: Mapping[str, float]) -> None:
        self._through_ns = through_ns

    def count_unnamed(self, batches: Iterable[AcceptedManifest]) -> int:
        """Return how many new batches a journal should have named.

        A gateway names what it accepted before the time of its journal. If all of its processes
        have ended, nothing further is named.
        """
        margin_ns = ACKNOWLEDGED_S * NS_PER_S
        return sum(
            one.accepted_at_unix_ns + margin_ns < self._through_ns.get(one.collector_id, 0)
            for one in batches
        )
