"""How derived objects differ from what their sources say."""

from dataclasses import dataclass
from enum import StrEnum

from sluice_protocol.units import ObjectKey


class DifferenceKind(StrEnum):
    """How a derived object differs from what its sources say."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedDifference:
    """One derived object that is not what it should be.

    Attributes:
        key: The object, or the key that an entry of a pack would have alone.
        wrong: How it differs.
        detail: What was found.
        pack: The pack that holds it, when it is an entry of one.
    """

    key: ObjectKey
    wrong: DifferenceKind
    detail: str = ""
    pack: ObjectKey | None = None
