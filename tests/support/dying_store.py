"""A store whose caller crashes before or after one of its writes.

Also here: a store with one fault: the n-th write of a frame fails, or its gateway is killed in it.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from support.gateway import CountingStore
from support.queue_store import OneByOne

from sluice_protocol.errors import StoreDenied, StoreUnavailable
from sluice_protocol.keys import ACCEPTED, RAW_BLOBS
from sluice_protocol.outcomes import CreateOutcome
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.port import ObjectStore


@dataclass(frozen=True)
class WriteFault:
    """What happens at the n-th write of a blob or of an accepted manifest.

    Attributes:
        nth: The write, from 1 on.
        applies: Whether it takes effect.
        kills: Whether it never returns, as if the gateway were killed; else it fails.
    """

    nth: int
    applies: bool
    kills: bool


class WriteFaultStore(CountingStore):
    """A store with one fault."""

    def __init__(self, inner: ObjectStore, fault: WriteFault) -> None:
        super().__init__(inner)
        self.fault = fault
        self.writes = 0
        self.reached = asyncio.Event()

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        self.writes += key.startswith((ACCEPTED, RAW_BLOBS))
        if self.writes != self.fault.nth or self.reached.is_set():
            return await super().create(key, body, sha256=sha256)
        self.reached.set()
        if self.fault.applies:
            await super().create(key, body, sha256=sha256)
        if self.fault.kills:
            await asyncio.Event().wait()
        raise StoreUnavailable("create", key, "planned fault")


class RefusingStore(CountingStore):
    """A store that refuses the writes of a frame while `refuses` is set.

    Attributes:
        refuses: The prefixes of the keys whose creates fail.
        applies: Whether a create that fails takes effect.
        error: What it raises: an unreachable store is tried again, one that denies is not.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.refuses: tuple[str, ...] = (ACCEPTED, RAW_BLOBS)
        self.applies = False
        self.error: type[StoreDenied | StoreUnavailable] = StoreDenied

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        if key.startswith(self.refuses):
            if self.applies:
                await super().create(key, body, sha256=sha256)
            raise self.error("create", key, "planned fault")
        return await super().create(key, body, sha256=sha256)


WRITES = frozenset({"create", "replace", "overwrite", "delete"})


class Died(BaseException):
    """The process crashed."""


@dataclass
class DyingStore(OneByOne):
    """A store whose caller crashes before or after its n-th call of some verbs.

    Attributes:
        inner: The store.
        left: Calls that succeed before the crash.
        after: Whether the call of the crash takes effect.
        verbs: The verbs that count.
        died: Whether the crash has happened.
    """

    inner: ObjectStore
    left: int
    after: bool
    verbs: Collection[str] = WRITES
    died: bool = False

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.inner, name)
        if name not in self.verbs:
            return verb

        async def dying(*args: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left >= 0:
                return await verb(*args, **named)
            self.died = True
            if self.after:
                await verb(*args, **named)
            raise Died

        return dying
