"""Syslog messages of both forms: every field has the place that docs/doors.md states."""

import json
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from support.golden import golden

from sluice_doors.decoded import DecodedRecords
from sluice_doors.syslog import SEVERITIES, SyslogFrames, SyslogPiece, decode_syslog
from sluice_protocol.columns import LogColumns
from sluice_protocol.ndjson import attribute_rows

NOW_NS = int(datetime(2026, 11, 22, 8, tzinfo=UTC).timestamp()) * 10**9
MESSAGES = (
    b"<34>1 2003-10-11T22:14:15.003Z mymachine.example su - ID47 - \xef\xbb\xbf'su root' failed",
    b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time.",
    (
        b'<165>1 2003-10-11T22:14:15.003Z host evntslog - ID47 [exampleSDID@32473 iut="3" '
        b'eventSource="Application" eventID="1011"][examplePriority@32473 class="high"] event'
    ),
    b'<13>1 2026-11-22T00:00:00Z - app - - [a x="q\\"b\\\\s\\]e" x="2" y="\\n"][b] body',
    b"<13>1 - - - - - -",
    b"<13>1 2026-13-22T00:00:00Z h a - - - bad time",
    b'<13>1 2026-11-22T00:00:00Z h a - - [a x="1] bad data',
    b"<13>2 2026-11-22T00:00:00Z h a 1 m - another version",
    b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8",
    b"<13>Nov  2 08:00:00 host cron[123]: job started\n",
    b"<13>Nov 22 08:00:00 tag[7]: without a host\0",
    b"<189>*Nov 22 2026 10:00:00.123: %SYS-5-CONFIG_I: Configured",
    b"<30>2026-11-22T07:00:00.123456+01:00 host app[9]: as rsyslog forwards",
    b"<30>2026-11-22 07:00:00 fe80::1 app: without a zone",
    b"<13>Feb 30 08:00:00 host app: no such day",
    b"<13>just text",
    b"<192>1 - - - - - - priority above 191",
    b"no priority",
    b"<13>Nov 22 08:00:00 host app: caf\xe9",
)


def decoded(*messages: bytes, zone: str = "UTC", now_ns: int = NOW_NS) -> DecodedRecords:
    pieces = [SyslogPiece(one, {"network.peer.address": "192.0.2.7"}) for one in messages]
    found = decode_syslog(pieces, received_ns=now_ns, zone=ZoneInfo(zone))
    assert found is not None
    return found


def rows(found: DecodedRecords) -> list[dict[str, object]]:
    columns = found.columns
    assert isinstance(columns, LogColumns)
    assert columns.severity is not None
    attributes = attribute_rows(columns.attributes, len(columns))
    return [
        {"ts_ns": ts, "body": body.decode(), "severity": severity, "attributes": pairs}
        for ts, body, severity, pairs in zip(
            columns.ts.tolist(), columns.body.slices(), columns.severity.tolist(), attributes,
            strict=True,
        )
    ]  # fmt: skip


def test_a_host_of_four_digits_is_no_year() -> None:
    [row] = rows(decoded(b"<13>Nov 22 08:00:00 0042 app: x"))
    assert row["attributes"]["host.name"] == "0042"


def test_every_field_has_its_place() -> None:
    """The golden file is the table of docs/doors.md as examples."""
    found = decoded(*MESSAGES)
    text = json.dumps(rows(found), indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    assert golden("doors/syslog.json", text) == text
    assert (found.timed, found.unreadable) == (False, 6)


def test_structured_data_may_be_missing() -> None:
    """As in what Heroku's Logplex sends."""
    text = "<40>1 2012-11-30T06:45:29+00:00 host app web.3 - State changed from starting to up"
    [row] = rows(decoded(text.encode()))
    assert row["body"] == "State changed from starting to up"
    assert "sluice.error" not in row["attributes"]


def test_severities_are_those_of_opentelemetry() -> None:
    found = rows(decoded(*(b"<%d>x" % (23 * 8 + n) for n in range(8))))
    assert [row["severity"] for row in found] == list(SEVERITIES)
    assert {row["attributes"]["syslog.facility"] for row in found} == {"23"}


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("Nov 22 08:00:00", "UTC", "2026-11-22T08:00:00+00:00"),
        ("Nov 23 07:59:59", "UTC", "2026-11-23T07:59:59+00:00"),
        ("Nov 23 08:00:01", "UTC", "2025-11-23T08:00:01+00:00"),
        ("Dec 31 23:59:59", "UTC", "2025-12-31T23:59:59+00:00"),
        ("Jul  1 12:00:00", "Europe/Berlin", "2026-07-01T12:00:00+02:00"),
        ("Nov 22 09:00:00.25", "Europe/Berlin", "2026-11-22T09:00:00.250+01:00"),
        ("Nov 22 2019 09:00:00", "UTC", "2019-11-22T09:00:00+00:00"),
        ("Nov 22 09:00:00 2019", "UTC", "2019-11-22T09:00:00+00:00"),
    ],
)
def test_a_missing_year_is_the_latest_at_most_a_day_ahead(
    text: str, zone: str, expected: str
) -> None:
    (row,) = rows(decoded(f"<13>{text} host app: x".encode(), zone=zone))
    assert row["ts_ns"] == int(datetime.fromisoformat(expected).timestamp() * 1000) * 10**6


def test_a_new_year_is_inferred_across_midnight() -> None:
    """A sender ahead of this machine writes January while it is December here."""
    eve_ns = int(datetime(2026, 12, 31, 23, 59, tzinfo=UTC).timestamp()) * 10**9
    ahead, behind = rows(
        decoded(b"<13>Jan  1 00:00:30 h a: x", b"<13>Dec 31 23:58:00 h a: x", now_ns=eve_ns)
    )
    assert datetime.fromtimestamp(ahead["ts_ns"] / 1e9, UTC).year == 2027
    assert datetime.fromtimestamp(behind["ts_ns"] / 1e9, UTC).year == 2026


def split(*data: bytes, bytes_max: int = 100) -> list[SyslogPiece]:
    frames = SyslogFrames({}, bytes_max=bytes_max)
    return [piece for one in data for piece in frames.feed(one)] + frames.end()


@pytest.mark.parametrize(
    ("data", "messages"),
    [
        (b"<1>a\n<1>b\r\n\n<1>c", [b"<1>a", b"<1>b\r", b"<1>c"]),
        (b"4 <1>a7 <1>b\nc\n5 <1>cc", [b"<1>a", b"<1>b\nc\n", b"<1>cc"]),
        (b"4 <1>a\n4 <1>b\n", [b"<1>a", b"<1>b"]),
        (b"5 apples\n<1>x\n", [b"5 apples", b"<1>x"]),
        (b"12", [b"12"]),
        (b"", []),
    ],
)
def test_both_framings(data: bytes, messages: list[bytes]) -> None:
    """A count before `<` begins octet counting; everything else is lines."""
    assert [piece.data for piece in split(data)] == messages
    one_by_one = [bytes([octet]) for octet in data]
    assert [piece.data for piece in split(*one_by_one)] == messages


@pytest.mark.parametrize("prefix", [b"", b"260 "])
def test_a_long_message_continues_as_raw_records(prefix: bytes) -> None:
    """Nothing is lost, and no more than the limit is kept while it arrives."""
    message = b"<13>" + b"\xc3\xa9" * 128
    after = b"4 <1>a" if prefix else b"\n<1>a"
    pieces = split(*(bytes([octet]) for octet in prefix + message + after), bytes_max=101)
    assert b"".join(piece.data for piece in pieces) == message + b"<1>a"
    assert max(len(piece.data) for piece in pieces) <= 101
    assert [(piece.rest, piece.continues) for piece in pieces] == [
        (False, True), (True, True), (True, False), (False, False),
    ]  # fmt: skip
    found = decode_syslog(pieces, received_ns=NOW_NS, zone=UTC)
    assert found is not None
    attributes = [row["attributes"] for row in rows(found)]
    assert [one.get("sluice.continues") for one in attributes] == ["true", "true", None, None]
    assert ["sluice.error" in one for one in attributes] == [True, True, True, False]


def test_a_broken_count_ends_the_stream_and_is_kept() -> None:
    frames = SyslogFrames({}, bytes_max=100)
    pieces = frames.feed(b"4 <1>aXYZ <1>b")
    assert [(piece.data, bool(piece.error)) for piece in pieces] == [
        (b"<1>a", False), (b"XYZ <1>b", True),
    ]  # fmt: skip
    assert frames.broken
    (after,) = frames.feed(b"4 <1>c")
    assert (after.data, after.rest, bool(after.error)) == (b"4 <1>c", True, True)
    assert frames.end() == []


def test_a_message_that_ends_with_the_connection_is_kept() -> None:
    (piece,) = split(b"9 <1>abc")
    assert (piece.data, bool(piece.error)) == (b"<1>abc", True)


def test_messages_of_pythons_handler_end_with_nul() -> None:
    """Their text may have line feeds inside, for example the lines of a traceback."""
    frames = SyslogFrames({}, bytes_max=1000)
    sent = [b"<14>one", b"<14>two\nlines", b"<14>three"]
    found = [piece.data for data in sent for piece in frames.feed(data + b"\0")]
    assert found == sent
    assert frames.end() == []


def test_a_nul_before_a_line_feed_ends_no_message() -> None:
    frames = SyslogFrames({}, bytes_max=1000)
    stream = b"<14>one\0", b"\n<14>two\n", b"<14>three\n"
    found = [piece.data for data in stream for piece in frames.feed(data)]
    assert found == [b"<14>one", b"<14>two", b"<14>three"]
