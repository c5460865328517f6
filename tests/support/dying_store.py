"""A store whose caller crashes before or after one of its writes."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from support.queue_store import OneByOne

from sluice_store.port import ObjectStore

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
