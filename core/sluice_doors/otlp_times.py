"""The time of a record: its own, the time of its observation, or the time of receipt."""

from dataclasses import dataclass
from typing import Final

from sluice_doors.json_values import integer_of
from sluice_protocol.times import TS_END

TIME_KEY: Final = "time_unix_nano"
OBSERVED_KEY: Final = "observed_time_unix_nano"
BAD_TIME: Final = "time is outside 1970 to 2262"


@dataclass(frozen=True, slots=True)
class RecordTime:
    """The time of a record.

    Attributes:
        ts_ns: The time.
        timed: True if the record contains it.
        fields: Times that the column does not contain, as attributes.
        error: The reason if a time is unreadable, or empty.
    """

    ts_ns: int
    timed: bool
    fields: tuple[tuple[str, str], ...] = ()
    error: str = ""


def parse_time(value: int | str) -> int | None:
    """Return a time as Unix ns, 0 if it is not set; None if it is out of range or no number."""
    if not value:
        return 0
    found = integer_of(value)
    return found if found is not None and 0 <= found < TS_END else None


def choose_time(time: int | str, observed: int | str, *, received_ns: int) -> RecordTime:
    """Return the first of `time` and `observed` that is set and in range, else the receipt."""
    own, seen = parse_time(time), parse_time(observed)
    fields = [(TIME_KEY, str(time))] if own is None else []
    ts_ns = own or seen or received_ns
    if seen is None or (seen and seen != ts_ns):
        fields.append((OBSERVED_KEY, str(observed)))
    return RecordTime(
        ts_ns, bool(own or seen), tuple(fields), BAD_TIME if own is None or seen is None else ""
    )
