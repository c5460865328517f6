"""Times for people: RFC 3339, UTC."""

from datetime import UTC, datetime

from sluice_protocol.units import NS_PER_S


def format_time(at_ns: int) -> str:
    """Gives a time with milliseconds, as in `2026-01-02T03:04:05.678Z`."""
    moment = datetime.fromtimestamp(at_ns // NS_PER_S, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ns % NS_PER_S // 1_000_000:03d}Z"
