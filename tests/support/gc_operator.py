"""An operator who resolves conflicts at random times, and gateways that follow the decisions.

The list, the resolver and the reader are those of the product. Ids of decisions are random, so that
a new one may sort before one that a gateway has read.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from support.gc_store import VersionedStore
from support.simloop import SimClock, SimIds, SimLoop

from sluice_gateway.process.worker import DECISIONS_INTERVAL_S
from sluice_protocol.conflicts import AgentBoot, ConflictName
from sluice_protocol.errors import OutcomeUnknown
from sluice_protocol.identity import Identity
from sluice_protocol.keys import quarantine_by_blob_key
from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.units import NS_PER_S
from sluice_store.conflicts import CONFLICTS_PAGE_MAX, DecisionsReader, Resolver, list_conflicts

IN_FORCE_S = DECISIONS_INTERVAL_S + 2
"""Longest time until every gateway follows a decision: its interval and a few slow requests."""

DECISION_EVERY_S = 120

Tidy = Callable[[VersionedStore, ConflictName], None]
"""The action of a mutant after it wrote a decision."""


def keep(_store: VersionedStore, _name: ConflictName) -> None:
    """Remove nothing, as the product does."""


def agent_of(who: Identity) -> AgentBoot:
    return who.agent_id, who.boot_id


class GatewayDecisions:
    """The decisions that one gateway knows, as of its last reading."""

    def __init__(self, store: VersionedStore) -> None:
        self._reader = DecisionsReader(store)

    def refuses(self, who: Identity) -> bool:
        """Return True if a gateway refuses uploads of this agent and boot."""
        return agent_of(who) in self._reader.current.quarantined

    async def follow(self) -> None:
        """Read the decisions as often as a gateway does."""
        while True:
            await asyncio.sleep(DECISIONS_INTERVAL_S)
            await self._reader.refresh()


@dataclass
class Operator:
    """An operator who decides about any listed conflict, open or already decided.

    Attributes:
        tidy: Does nothing except in a mutant.
        decided: Number of decisions per action.
        names: Every decided conflict.
        shut_s: Time by which the quarantine of an agent and boot was durable.
    """

    loop: SimLoop
    rng: Random
    store: VersionedStore
    tidy: Tidy = keep
    decided: dict[str, int] = field(default_factory=dict)
    names: set[ConflictName] = field(default_factory=set)
    shut_s: dict[AgentBoot, float] = field(default_factory=dict)

    async def work(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / DECISION_EVERY_S))
            listed = await list_conflicts(
                self.store, agents=None, after=None, limit=CONFLICTS_PAGE_MAX
            )
            if listed:
                await self._decide(self.rng.choice(listed).name)

    async def _decide(self, name: ConflictName) -> None:
        assert isinstance(await self.store.head(name.key), ObjectInfo), "a conflict was lost"
        quarantine = self.rng.random() < 0.3
        clock = SimClock(self.loop, skew_ns=self.rng.randrange(-60, 60) * NS_PER_S)
        resolver = Resolver(
            store=self.store, clock=clock, ids=SimIds(self.rng), decided_by="operator"
        )
        try:
            decision = await resolver.resolve(
                name, "quarantine_identity" if quarantine else "accept_existing", "inspected"
            )
        except OutcomeUnknown:
            return  # the decision may or may not be in force, so that nothing is expected of it
        self.decided[decision.action] = self.decided.get(decision.action, 0) + 1
        self.names.add(name)
        if quarantine:
            self.shut_s.setdefault(agent_of(name.identity), self.loop.time())
        self.tidy(self.store, name)

    def must_refuse(self, who: Identity, began_s: float) -> bool:
        """Return True if the upload began after every gateway had to know the decision."""
        shut_s = self.shut_s.get(agent_of(who))
        return shut_s is not None and began_s > shut_s + IN_FORCE_S

    def vanished(self) -> list[ConflictName]:
        """Return the decided conflicts whose quarantine manifest no longer exists."""
        return [name for name in self.names if name.key not in self.store.versions]


def drop_one(store: VersionedStore, name: ConflictName) -> None:
    """A mutant that removes one of manifest and reverse reference of a decided conflict."""
    evidence = quarantine_by_blob_key(name.submitted, name.identity), name.key
    store.remove_key(evidence[name.submitted < "8"])


def drop_both(store: VersionedStore, name: ConflictName) -> None:
    """A mutant that removes both for a decided conflict."""
    store.remove_key(quarantine_by_blob_key(name.submitted, name.identity))
    store.remove_key(name.key)
