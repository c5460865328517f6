"""The tail scan: what came behind the last key of each life that was active lately.

For a store where a listing costs nothing and nobody sends events: the embedded directory. It lists
each of the latest lives behind its last known key, so a batch is found without listing the others.
New lives, and batches below the last key, are found by the full pass.
"""

from collections import OrderedDict
from typing import Final

from sluice_protocol.units import ObjectKey
from sluice_reconciler.intake import Intake, Outcome

BOOTS_MAX: Final = 1000


class Tail:
    """Remembers the last key of each life that a route met lately."""

    def __init__(self, intake: Intake) -> None:
        """Binds the tail to an intake."""
        self._intake = intake
        self._last: OrderedDict[str, ObjectKey] = OrderedDict()

    def saw(self, key: ObjectKey) -> None:
        """Takes note of an accepted key; the lives met longest ago are forgotten first."""
        boot = key.rpartition("/")[0] + "/"
        self._last[boot] = max(key, self._last.get(boot, key))
        self._last.move_to_end(boot)
        if len(self._last) > BOOTS_MAX:
            self._last.popitem(last=False)

    async def scan(self) -> Outcome:
        """Takes everything behind the last keys.

        Raises:
            StoreError: The store did not answer; the full pass finds what was missed.
            OutcomeUnknown: As `Intake.take`.
        """
        found: list[ObjectKey] = []
        for boot, last in list(self._last.items()):
            async for page in self._intake.store.list(boot, start_after=last):
                found += [one.key for one in page.objects]
        if not found:
            return Outcome()
        outcome = Outcome()
        step = self._intake.settings.list_batches_max
        for at in range(0, len(found), step):
            outcome = outcome.plus(await self._intake.take_new(found[at : at + step]))
        for key in found:
            self.saw(key)
        return outcome
