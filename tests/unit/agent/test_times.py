"""Every form of a time has the same nanoseconds for every consumer, or none for all of them."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import msgpack
import pytest

from sluice_agent.inputs.timestamps import parse_timestamps
from sluice_doors.decoded import ERROR_ATTRIBUTE, DecodedRecords
from sluice_doors.forward.messages import decode_forward
from sluice_doors.json.elasticsearch import decode_bulk
from sluice_doors.json.firehose import decode_firehose
from sluice_doors.json.hec import decode_events
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import RecordFields
from sluice_doors.json.timed_lines import timed_lines
from sluice_doors.syslog import SyslogPiece, decode_syslog
from sluice_protocol.columns import LogColumns
from sluice_protocol.meaning import BODY_KEYS, TIME_KEYS
from sluice_protocol.records import text_column
from sluice_protocol.times import read_time
from sluice_protocol.units import UnixNs

RECEIVED = UnixNs(int(datetime(2026, 11, 27, tzinfo=UTC).timestamp()) * 10**9 + 7)
BASE = int(datetime(2026, 11, 21, 2, 16, 19, tzinfo=UTC).timestamp()) * 10**9
HOUR = 3600 * 10**9
ZONES = {
    "": 0, "Z": 0, "z": 0, "+00": 0, "+0000": 0, "+00:00": 0, "-00:00": 0, " UTC": 0, " GMT": 0,
    "UTC": 0, " Z": 0, "+01": HOUR, "+0100": HOUR, "+01:00": HOUR, " +01": HOUR, " +0100": HOUR,
    " +01:00": HOUR, "-0330": -7 * HOUR // 2, "-03:30": -7 * HOUR // 2, "+14:00": 14 * HOUR,
    "+01:00[Europe/Berlin]": HOUR, " +0100 CET": HOUR,
}  # fmt: skip
FRACTIONS = {
    "": 0, ".5": 500_000_000, ",5": 500_000_000, ".123456": 123_456_000, ",123456789": 123_456_789,
    ".000000001": 1, ".12345678949": 123_456_789, "." + "9" * 30: 999_999_999,
}  # fmt: skip
MARKERS = {"": 0, " AM": 0, "PM": 12 * HOUR, " pm": 12 * HOUR, " p.m.": 12 * HOUR}
DATES = ("2026-11-21T02:16:19", "2026-11-21t02:16:19", "2026-11-21 02:16:19")
OLD = ("Nov 21 02:16:19", "Nov 21 2026 02:16:19")

FORMS = {
    f"{date}{fraction}{marker}{zone}": BASE + ns + later - offset_ns
    for date in (*DATES, *OLD)
    for fraction, ns in FRACTIONS.items()
    for marker, later in MARKERS.items()
    for zone, offset_ns in ZONES.items()
    if not (marker and zone[:1].isalpha())
} | {
    "2026-11-21T02:16Z": BASE - 19 * 10**9,
    "Nov 21 02:16:19 2026": BASE,
    "Feb 29 02:16:19": int(datetime(2024, 2, 29, 2, 16, 19, tzinfo=UTC).timestamp()) * 10**9,
    "Dec 31 23:59:59": int(datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 10**9,
}
WRONG = (
    *("2026-11-21 02:16:19 EST", "2026-11-21 02:16:19EST", "2026-11-21T02:16:19 UTC+1"),
    *("2026-11-21T02:16:19+1", "2026-11-21T02:16:19+1:00", "2026-11-21T02:16:19+01:00:30"),
    *("2026-11-21T02:16:19+25:00", "2026-11-21T02:16:19+01:60", "2026-11-21T02:16:19x"),
    *("2026-11-21T14:16:19 PM", "2026-11-21 00:16:19 AM", "2026-11-21T02:16:60Z"),
    *("2026-02-29T02:16:19Z", "2026-13-01T02:16:19Z", "2026-11-21T24:16:19Z"),
    *("2026-11-21T02:16:19[Europe/Berlin]", "Feb 30 02:16:19", "Feb 29 2026 02:16:19"),
    *("1970-01-01T00:00:00+14:00", "2026-11-21T02:16:19." + "1" * 41 + "+01:00"),
)


def records(found: tuple[DecodedRecords, ...]) -> list[int]:
    (one,) = found
    assert isinstance(one.columns, LogColumns)
    names = () if one.columns.attributes is None else one.columns.attributes.names
    shared = dict(one.resource)
    late = ERROR_ATTRIBUTE in names or ERROR_ATTRIBUTE in shared
    assert late == (one.unreadable > 0)
    return list(one.columns.ts.tolist())


def files(texts: list[str]) -> list[int]:
    lines = text_column("body", [f"[{text}] message".encode() for text in texts])
    return list(parse_timestamps(lines, arrived_ns=RECEIVED, zone=UTC).tolist())


def file_by_file(texts: list[str]) -> list[int]:
    """Return the times of files whose lines all have one form."""
    blocks = [text_column("body", [f"{text} message".encode()] * 3) for text in texts]
    return [int(parse_timestamps(one, arrived_ns=RECEIVED, zone=UTC)[2]) for one in blocks]


def syslog(texts: list[str]) -> list[int]:
    pieces = [SyslogPiece(f"<13>{text} host app: message".encode(), {}) for text in texts]
    found = decode_syslog(pieces, received_ns=RECEIVED, zone=UTC)
    assert isinstance(found.columns, LogColumns)
    return list(found.columns.ts.tolist())


def json_door(texts: list[str]) -> list[int]:
    body = "\n".join(json.dumps({"time": text, "message": "m"}) for text in texts).encode()
    return records(decode_json(body, RecordFields(received_ns=RECEIVED)))


def bulk(texts: list[str]) -> list[int]:
    pairs: list[tuple[object, object]] = [
        ({"create": {}}, {"@timestamp": text, "message": "m"}) for text in texts
    ]
    lines = [json.dumps(one) for pair in pairs for one in pair]
    return records(decode_bulk("\n".join(lines).encode(), received_ns=RECEIVED).records)


def hec(texts: list[str]) -> list[int]:
    body = "".join(json.dumps({"time": text, "event": "m"}) for text in texts).encode()
    return records(decode_events(body, received_ns=RECEIVED))


def firehose(texts: list[str]) -> list[int]:
    lines = "\n".join(json.dumps({"timestamp": text, "message": "m"}) for text in texts).encode()
    body = json.dumps({"records": [{"data": base64.b64encode(lines).decode()}]}).encode()
    return records(decode_firehose(body, {}, received_ns=RECEIVED))


def forward(texts: list[str]) -> list[int]:
    body = msgpack.packb(["tag", [[text, {"message": "m"}] for text in texts]])
    return records(decode_forward(body, received_ns=RECEIVED, bytes_max=1 << 24))


CONSUMERS = (files, file_by_file, syslog, json_door, bulk, hec, firehose, forward)


@pytest.mark.daily(4)
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_every_form_is_the_same_time_for_every_consumer(
    consumer: Callable[[list[str]], list[int]],
) -> None:
    """2,700 texts: dates, fractions, markers and zones in all combinations."""
    forms = dict(FORMS)
    if consumer is file_by_file:
        forms = dict(list(forms.items())[::7])
    if consumer is forward:  # its times state a year
        forms = {text: ns for text, ns in forms.items() if text[0] == "2" or "2026" in text}
    found = dict(zip(forms, consumer(list(forms)), strict=True))
    assert {text: ns for text, ns in found.items() if ns != forms[text]} == {}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_time_that_is_not_understood_is_never_another_time(
    consumer: Callable[[list[str]], list[int]],
) -> None:
    found = dict(zip(WRONG, consumer(list(WRONG)), strict=True))
    assert {text: ns for text, ns in found.items() if ns != RECEIVED} == {}


def test_the_time_of_a_request_is_known_before_its_records_are_made() -> None:
    """The identity of a request rests on it: a retry has the same times, whenever it comes."""
    for text, ns in FORMS.items():
        if text[0] != "2":
            continue
        found = timed_lines(json.dumps({"time": text}).encode(), TIME_KEYS, BODY_KEYS)
        assert found.times == [ns]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1763769600", 1_763_769_600 * 10**9),
        ("1763769600.123456789", 1_763_769_600_123_456_789),
        ("1763769600.12345678999", 1_763_769_600_123_456_789),
        ("1763769600123", 1_763_769_600_123 * 10**6),
        ("1763769600123456789", 1_763_769_600_123_456_789),
        (" 2026-11-21T02:16:19Z ", BASE),
        ("2026", 2026 * 10**9),
        *((text, None) for text in ("", "0", "-1", "1e9", "+5", "NaN", "Infinity", "1_0", "١٢٣")),
    ],
)  # fmt: skip
def test_numbers_as_text(text: str, ns: int | None) -> None:
    assert read_time(text, zone=UTC) == ns


def test_times_without_a_zone_are_in_the_zone_of_their_consumer() -> None:
    """An abbreviation is understood where it is the name of that zone at that time."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415

    berlin = ZoneInfo("Europe/Berlin")
    for text, offset_h in {
        "2026-11-21 02:16:19": 1, "2026-11-21 02:16:19 CET": 1, "2026-07-21 02:16:19 CEST": 2,
        "2026-10-25 02:30:00 CEST": 2, "2026-10-25 02:30:00 CET": 1,
    }.items():  # fmt: skip
        naive = datetime.fromisoformat(text[:19]).replace(tzinfo=UTC)
        expected = (int(naive.timestamp()) - offset_h * 3600) * 10**9
        assert read_time(text, zone=berlin) == expected, text
    assert read_time("2026-07-21 02:16:19 CET", zone=berlin) is None


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


AT_OFFSET_NS = 1_784_592_979 * 10**9


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-07-21T02:16:19+02:00", AT_OFFSET_NS),
        ("2026-07-21T02:16:19.25+02:00", AT_OFFSET_NS + 250_000_000),
        ("2026-07-20T19:46:19-04:30", AT_OFFSET_NS),
        ("2026-07-21T00:16:19Z", AT_OFFSET_NS),
        ("2026-07-21T02:16:19+24:00", None),
        ("2026-07-21T02:16:19+02:60", None),
        ("1970-01-01T00:00:00.5+01:00", None),
        ("2026-07-21T02:16:19Z5Z", None),
        ("2026-07-21T02:16:19+5+02:00", None),
        ("2026-07-21 02:16-00Z", None),
    ],
)
def test_offsets_of_a_second(text: str, ns: int | None) -> None:
    """An offset is subtracted, and nothing else may be between the second and the zone."""
    assert read_time(text, zone=UTC) == ns
