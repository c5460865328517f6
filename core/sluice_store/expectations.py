"""What a conformance check raises, so that a test can tell in which way a store deviates."""

from typing import TypeVar

_T = TypeVar("_T")


class Nonconforming(AssertionError):
    """A store that does not keep a promise of the port.

    Attributes:
        promise: The promise, in the words of the check.
        seen: What the store did instead.
    """

    def __init__(self, promise: str, seen: str) -> None:
        """Carries the promise and what was seen."""
        super().__init__(promise, seen)
        self.promise = promise
        self.seen = seen

    def __str__(self) -> str:
        """Says both."""
        return f"{self.promise}, seen=`{self.seen}`"


def expect(promise: str, *, holds: bool, seen: object) -> None:
    """Raises `Nonconforming` unless the promise holds; unlike `assert`, also under `-O`."""
    if not holds:
        raise Nonconforming(promise, str(seen))


def expect_type(promise: str, seen: object, kind: type[_T]) -> _T:
    """Gives `seen` as a `kind`, or raises `Nonconforming`."""
    if not isinstance(seen, kind):
        raise Nonconforming(promise, str(seen))
    return seen
