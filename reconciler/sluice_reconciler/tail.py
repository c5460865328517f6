"""The tail scan: what came behind the last key of each life that was active lately.

For a store where a listing costs nothing and nobody sends events: the embedded directory. It lists
each of the latest lives behind its last known key, so a batch is found without listing the others.
Batches of one life may be accepted out of order; so while one of its latest keys does not touch the
one before, the listing starts there. New lives, and batches further back, are found by the full
pass.
"""

import itertools
from collections import OrderedDict
from typing import Final

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import parse_accepted_key
from sluice_protocol.units import ObjectKey
from sluice_reconciler.intake import Intake, Outcome

BOOTS_MAX: Final = 1000
LATEST_MAX: Final = 32
"""Keys of one life among which a hole is watched."""


class Tail:
    """Remembers the latest keys of each life that a route met lately."""

    def __init__(self, intake: Intake) -> None:
        """Binds the tail to an intake."""
        self._intake = intake
        self._latest: OrderedDict[str, list[ObjectKey]] = OrderedDict()

    def saw(self, key: ObjectKey) -> None:
        """Takes note of an accepted key; the lives met longest ago are forgotten first."""
        boot = key.rpartition("/")[0] + "/"
        known = self._latest.get(boot, [])
        if key not in known:
            self._latest[boot] = sorted([*known, key])[-LATEST_MAX:]
        self._latest.move_to_end(boot)
        if len(self._latest) > BOOTS_MAX:
            self._latest.popitem(last=False)

    async def scan(self) -> Outcome:
        """Takes everything behind the last keys.

        Raises:
            StoreError: The store did not answer; the full pass finds what was missed.
            OutcomeUnknown: As `Intake.take`.
        """
        found: list[ObjectKey] = []
        for boot, latest in list(self._latest.items()):
            known = set(latest)
            start_after = _behind(latest)
            async for page in self._intake.store.list(boot, start_after=start_after):
                found += [one.key for one in page.objects if one.key not in known]
        outcome = Outcome()
        step = self._intake.settings.list_batches_max
        for at in range(0, len(found), step):
            outcome = outcome.plus(await self._intake.take_new(found[at : at + step]))
        for key in found:
            self.saw(key)
        return outcome


def _behind(latest: list[ObjectKey]) -> ObjectKey:
    """Gives the last key before the first hole among the latest ones."""
    for before, after in itertools.pairwise(latest):
        if not _touch(before, after):
            return before
    return latest[-1]


def _touch(before: ObjectKey, after: ObjectKey) -> bool:
    try:
        return parse_accepted_key(before).seq_end + 1 >= parse_accepted_key(after).seq_start
    except InvalidRecord:
        return True
