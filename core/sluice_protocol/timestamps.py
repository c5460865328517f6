"""RFC 3339 times with nanoseconds, exact in both directions."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import NS_PER_S, UnixNs

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?"
    r"([Zz]|([+-])(\d\d):([0-5]\d))",
    re.ASCII,
)


def parse_rfc3339(text: str) -> UnixNs:
    """Return the instant of an RFC 3339 time, to the nanosecond."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise BadUsage(
            f"time must be RFC 3339 with an offset, like 2026-01-31T12:00:00.5Z, time=`{text[:40]}`"
        )
    try:
        moment = datetime(*(int(part) for part in found.groups()[:6]), tzinfo=UTC)  # type: ignore[misc, arg-type] # six numbers
    except ValueError as error:
        raise BadUsage(f"time does not exist: {error}, time=`{text[:40]}`") from error
    seconds = (moment - _EPOCH) // timedelta(seconds=1) - _offset_s(found)
    return UnixNs(seconds * NS_PER_S + int((found[7] or "0").ljust(9, "0")))


def _offset_s(found: re.Match[str]) -> int:
    if found[9] is None:
        return 0
    size_s = int(found[10]) * 3600 + int(found[11]) * 60
    return size_s if found[9] == "+" else -size_s


def format_rfc3339(at_ns: int) -> str:
    """Return an instant as RFC 3339 in UTC, always with nine digits of a second."""
    seconds, rest_ns = divmod(at_ns, NS_PER_S)
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"
