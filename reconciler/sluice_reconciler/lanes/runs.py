"""Which runs of a lane's state are merged, and which objects may be deleted. Pure.

Every few hundred batches add a run. Runs of about the same size are merged (a log-structured merge
tree, size-tiered): `FAN_IN` runs of one tier, and all later ones, become one run of the next tier,
or a smaller one if they contain the same lives. A changed life is thereby rewritten once per tier,
and a life that does not change is rewritten only with as many that do.

Only adjacent runs are merged, and the result takes their place, so a newer state of a life is
always in a later run than an older one.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import Final

from sluice_reconciler.lanes.state import term_of_part

RECENT_MAX: Final = 512
"""Recent batches in the lane state above which the next write moves them into a part."""

FAN_IN: Final = 8
"""Runs of one tier that are merged."""

PART_LIVES_MAX: Final = 65_536
"""Lives in one part at most, about 3 MB. A larger run has several parts."""


def tier_of(lives: int) -> int:
    """Return the tier of a run; a run of the next one has up to `FAN_IN` times as many lives."""
    tier, bound = 0, 2 * RECENT_MAX
    while lives > bound:
        tier, bound = tier + 1, bound * FAN_IN
    return tier


def plan_merge(lives: Sequence[int]) -> int:
    """Return how many of the newest runs are merged now; 0 for none.

    Args:
        lives: The number of lives in each run, oldest first.
    """
    newest_first = [tier_of(one) for one in reversed(lives)]
    # A run in front of a larger one is merged together with it.
    tiers = list(accumulate(newest_first, max))
    for tier in sorted(set(tiers)):
        if tiers.count(tier) >= FAN_IN:
            return sum(one <= tier for one in tiers)
    return 0


def nameable(listed: Iterable[str], named: Collection[str], owner_term: int) -> set[str]:
    """Return the listed objects that a lane state names now, or that some owner may yet name.

    An owner names only objects that it wrote, or that the state named when it took the lane over.
    The owner of `owner_term` has swapped a state in, so no other owner of its term or an earlier
    one can swap again. An object of an earlier term that this state does not name is therefore
    never named. Those of this term and of later ones are kept: their writers may be about to name
    them.

    Args:
        listed: Names of parts, or of runs of requests.
        named: The names in the state that the owner swapped in.
        owner_term: The term of that owner.
    """
    return {name for name in listed if name in named or not _is_before(name, owner_term)}


def _is_before(name: str, owner_term: int) -> bool:
    term = term_of_part(name)
    return term is not None and term < owner_term
