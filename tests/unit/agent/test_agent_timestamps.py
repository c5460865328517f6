"""The timestamps of log lines, for whole columns."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from sluice_agent.inputs.timestamps import parse_timestamps
from sluice_protocol.records import text_column
from sluice_protocol.units import UnixNs

ARRIVED = UnixNs(int(datetime(2026, 11, 21, 2, 0, tzinfo=UTC).timestamp()) * 10**9)
BERLIN = ZoneInfo("Europe/Berlin")


def one(line: str) -> int:
    return int(
        parse_timestamps(text_column("body", [line.encode()]), arrived_ns=ARRIVED, zone=BERLIN)[0]
    )


def ns(text: str, fraction_ns: int = 0) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 10**9 + fraction_ns


@pytest.mark.parametrize(
    ("line", "ts"),
    [
        ("2026-11-21T02:16:19Z x", ns("2026-11-21T02:16:19+00:00")),
        ("2026-11-21T02:16:19z", ns("2026-11-21T02:16:19+00:00")),
        ("2026-11-21T02:16:19.123456+01:00 host", ns("2026-11-21T01:16:19+00:00", 123456000)),
        ("2026-11-21T02:16:19.123456789-0330 x", ns("2026-11-21T05:46:19+00:00", 123456789)),
        ("2026-11-21 02:16:19,5 INFO", ns("2026-11-21T01:16:19+00:00", 500000000)),
        ("2026-07-21 02:16:19 status installed", ns("2026-07-21T00:16:19+00:00")),
        ("2026-11-21 02:16:19.123 UTC [7] LOG:", ns("2026-11-21T02:16:19+00:00", 123000000)),
        ("2026-11-21 02:16:19 GMT", ns("2026-11-21T02:16:19+00:00")),
        ("[2026-11-21 02:16:19 +0530] x", ns("2026-11-20T20:46:19+00:00")),
        ("2026-11-21 02:16:19.123456789 -03:30", ns("2026-11-21T05:46:19+00:00", 123456789)),
        ("2026-11-21 02:16:19.123456789 +0000 UTC", ns("2026-11-21T02:16:19+00:00", 123456789)),
        ("2026-11-21 02:16:19 CET x", ns("2026-11-21T01:16:19+00:00")),
        ("2026-11-21T02:16:19+01 x", ns("2026-11-21T01:16:19+00:00")),
        ("2026-11-21 02:16:19.5 -03 [7] LOG:", ns("2026-11-21T05:16:19+00:00", 500000000)),
        ("2026-11-21 02:16:19 PM x", ns("2026-11-21T13:16:19+00:00")),
        ("2026-11-21 12:16:19 AM x", ns("2026-11-20T23:16:19+00:00")),
        ("2026-11-21T02:16:19.12345678999Z", ns("2026-11-21T02:16:19+00:00", 123456789)),
        ("2026-11-21T02:16Z", ns("2026-11-21T02:16:00+00:00")),
        ("Nov 21 02:16:19 PM host app: x", ns("2026-11-21T13:16:19+00:00")),
        ("Feb 29 02:16:19 host app: x", ns("2024-02-29T01:16:19+00:00")),
        ("*Nov 21 02:16:19.25 UTC: x", ns("2026-11-21T02:16:19+00:00", 250000000)),
        ("2026-11-21 02:16:19 UTCP started", ns("2026-11-21T01:16:19+00:00")),
        ("2026-11-21 02:16:19 +1507 bytes", ns("2026-11-21T01:16:19+00:00")),
        ("2026-11-21 02:16:19 -1500 bytes", ns("2026-11-21T01:16:19+00:00")),
        ("2026-11-21 02:16:19  UTC", ns("2026-11-21T01:16:19+00:00")),
        ("[2026-11-21T02:16:19Z] x", ns("2026-11-21T02:16:19+00:00")),
        ("2024-02-29T00:00:00Z", ns("2024-02-29T00:00:00+00:00")),
        ("Nov 21 02:16:19 host app: x", ns("2026-11-21T01:16:19+00:00")),
        ("Nov  1 00:00:00 host app: x", ns("2026-10-31T23:00:00+00:00")),
        ("Dec 31 23:59:59 host app: last year's", ns("2025-12-31T22:59:59+00:00")),
    ],
)
def test_timestamps_are_parsed(line: str, ts: int) -> None:
    """ISO 8601 with and without zone and fraction, and the old syslog form."""
    assert one(line) == ts


@pytest.mark.parametrize(
    "line",
    [
        "", "[", "no time", "2026-11-21", "2026-13-21T02:16:19Z", "2026-02-30T02:16:19Z",
        "2026-11-21T24:00:00Z", "2026-11-21T02:60:00Z", "1969-11-21T02:00:00Z",
        "9999-11-21T02:00:00Z", "Foo 21 02:16:19 x", "Nov 00 02:16:19 x", "Nov 31 02:16:19 x",
        "2026-11-21T02:16:1", "é" * 20, "2026-11-21 02:16:19 EST x", "2026-11-21 02:16:19EST x",
        "2026-11-21 14:16:19 PM x", "2026-11-21 02:16:19 UTC+1", "2026-11-21T02:16:19+25:00",
        "2026-11-21T02:16:19+1", "2026-11-21T02:16:19+01:00:30", "1970-01-01T00:00:00+14:00 x",
        "2026-11-21T02:16:19[Europe/Berlin]", "Nov 21 02:16:19 EST 2026",
    ],
)  # fmt: skip
def test_lines_without_a_timestamp_have_their_time_of_arrival(line: str) -> None:
    """An invalid or incomplete date is not guessed."""
    assert one(line) == ARRIVED


def test_a_column_is_parsed_line_by_line() -> None:
    """Lines do not affect each other, however short they are."""
    lines = [b"", b"2026-11-21T02:16:19Z", b"x", b"Nov 21 02:16:19 h", b"", b"2026-11-21T02:16:2"]
    got = parse_timestamps(text_column("body", lines), arrived_ns=ARRIVED, zone=BERLIN).tolist()
    assert got == [one(line.decode()) for line in lines]
