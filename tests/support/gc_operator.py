"""An operator who resolves conflicts at random moments, and gateways that obey.

What is written and how it is read is the product's own: its list, its resolver, its reader. Ids of
decisions are drawn at random, so a new one may sort before one that a gateway has read.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from support.gc_store import VersionedStore
from support.simloop import SimClock, SimIds, SimLoop

from sluice_gateway.background import DECISIONS_INTERVAL_S
from sluice_protocol.conflicts import AgentBoot, ConflictName
from sluice_protocol.errors import OutcomeUnknown
from sluice_protocol.identity import Identity
from sluice_protocol.keys import quarantine_by_blob_key
from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.units import NS_PER_S
from sluice_store.conflicts import CONFLICTS_PAGE_MAX, DecisionsReader, Resolver, list_conflicts

IN_FORCE_S = DECISIONS_INTERVAL_S + 2
"""Longest from a decision until every gateway obeys: its interval and a few slow requests."""

DECISION_EVERY_S = 120

Tidy = Callable[[VersionedStore, ConflictName], None]
"""What a mutant does after it has written a decision."""


def keep(_store: VersionedStore, _name: ConflictName) -> None:
    """What the product does: a decision takes nothing away."""


def agent_of(who: Identity) -> AgentBoot:
    return who.agent_id, who.boot_id


class Door:
    """What one gateway knows of people's decisions, as old as its last reading."""

    def __init__(self, store: VersionedStore) -> None:
        self._reader = DecisionsReader(store)

    def refuses(self, who: Identity) -> bool:
        """Asks what a gateway asks before every call of the store."""
        return agent_of(who) in self._reader.current.quarantined

    async def follow(self) -> None:
        """Reads anew as often as a gateway does."""
        while True:
            await asyncio.sleep(DECISIONS_INTERVAL_S)
            await self._reader.refresh()


@dataclass
class Operator:
    """Decides about any conflict on the list, open or decided before.

    Attributes:
        tidy: Nothing, but in a mutant.
        decided: How often each action was taken.
        names: Every conflict that was decided.
        shut_s: When a quarantine of an agent and boot was durable at the latest.
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
                name, "quarantine_identity" if quarantine else "accept_existing", "looked at"
            )
        except OutcomeUnknown:
            return  # it may be in force or not: nothing is expected of it
        self.decided[decision.action] = self.decided.get(decision.action, 0) + 1
        self.names.add(name)
        if quarantine:
            self.shut_s.setdefault(agent_of(name.identity), self.loop.time())
        self.tidy(self.store, name)

    def must_refuse(self, who: Identity, began_s: float) -> bool:
        """Whether an upload that began then came after every gateway had to know."""
        shut_s = self.shut_s.get(agent_of(who))
        return shut_s is not None and began_s > shut_s + IN_FORCE_S

    def vanished(self) -> list[ConflictName]:
        """Gives decided conflicts whose quarantine manifest no longer stands."""
        return [name for name in self.names if name.key not in self.store.versions]


def drop_one(store: VersionedStore, name: ConflictName) -> None:
    """A mutant: what is decided needs no quarantine manifest, or else no reverse reference."""
    evidence = quarantine_by_blob_key(name.submitted, name.identity), name.key
    store.remove_key(evidence[name.submitted < "8"])


def drop_both(store: VersionedStore, name: ConflictName) -> None:
    """A mutant: what is decided is forgotten."""
    store.remove_key(quarantine_by_blob_key(name.submitted, name.identity))
    store.remove_key(name.key)
