"""A create that follows another one, where the store can do both for less than two calls.

The order is that of two calls: the second object gets its name only after the first is durable. A
store that knows the second body early may write both bodies before either has a name (ADR 0188).
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import msgspec

from sluice_protocol.outcomes import Applied, CreateOutcome
from sluice_store.bulk import NewObject

Follow = Callable[[Applied], NewObject | None]
"""Returns the object that follows if the first create has this outcome, or None.

A store may call it in any thread, before the first object has its name, and for an outcome that
does not come about. Therefore it has no effects. Nothing follows if it raises an exception.
"""


class NewPair(msgspec.Struct, frozen=True, kw_only=True):
    """An object to be created, and what follows it.

    Attributes:
        first: The first object.
        follow: Decides the second object; None if nothing follows.
    """

    first: NewObject
    follow: Follow | None = None


class PairOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of a pair.

    Attributes:
        first: The outcome of the first create.
        second: The outcome of the second, which exists only if the first was applied. None if
            nothing followed or nothing was written: the caller may create it separately.
    """

    first: CreateOutcome
    second: CreateOutcome | None = None


@runtime_checkable
class PairStore(Protocol):
    """A store for which a pair costs less than two creates."""

    async def create_pair(self, pair: NewPair) -> PairOutcome:
        """Create the first object and, if it was applied, the one that follows.

        The second object is the one that `follow` returns for exactly the outcome that is reported.

        Raises:
            StoreError: The first request was refused or not sent; nothing was written.
        """
        ...
