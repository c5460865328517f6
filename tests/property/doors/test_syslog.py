"""Generated syslog messages are read back; any bytes in any pieces lose nothing and never raise."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from sluice_doors.syslog import PEER, SEVERITIES, SyslogFrames, SyslogPiece, decode_syslog
from sluice_protocol.columns import LogColumns, check_columns
from sluice_protocol.ndjson import attribute_rows

NOW = datetime(2026, 11, 22, 8, tzinfo=UTC)
NOW_NS = int(NOW.timestamp()) * 10**9
PRINTABLE = "".join(map(chr, range(33, 127)))
names = st.text(PRINTABLE, min_size=1, max_size=32)
sd_names = st.text("".join(set(PRINTABLE) - set('=]"[')), min_size=1, max_size=32)
values = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
texts = values.filter(lambda text: text == text.rstrip("\r\n\0") and not text.startswith("\ufeff"))
instants = st.datetimes(datetime(1971, 1, 1), datetime(2261, 1, 1))  # noqa: DTZ001


def record_of(message: bytes, peer: str = "") -> tuple[int, int, str, dict[str, str]]:
    """Return time, severity, body and attributes of the one record of a message."""
    source = {PEER: peer} if peer else {}
    found = decode_syslog([SyslogPiece(message, source)], received_ns=NOW_NS, zone=UTC)
    columns = found.columns
    assert isinstance(columns, LogColumns)
    check_columns(columns, 1)
    (attributes,) = attribute_rows(columns.attributes, 1)
    severity = 0 if columns.severity is None else int(columns.severity[0])
    return int(columns.ts[0]), severity, columns.body.slices()[0].decode(), dict(attributes)


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("]", "\\]")


@given(
    priority=st.integers(0, 191), at=instants, fields=st.lists(names, min_size=4, max_size=4),
    data=st.dictionaries(sd_names, st.dictionaries(sd_names, values, max_size=3), max_size=3),
    text=texts,
)  # fmt: skip
def test_rfc_5424_is_read_back(
    priority: int, at: datetime, fields: list[str], data: dict[str, dict[str, str]], text: str
) -> None:
    elements = "".join(
        "[" + " ".join([name, *(f'{key}="{escaped(value)}"' for key, value in pairs.items())]) + "]"
        for name, pairs in data.items()
    )
    message = f"<{priority}>1 {at.isoformat()}Z {' '.join(fields)} {elements or '-'} {text}"
    ts_ns, severity, body, attributes = record_of(message.encode())
    assert (
        ts_ns
        == (at.replace(tzinfo=UTC) - datetime.fromtimestamp(0, UTC))
        // timedelta(microseconds=1)
        * 1000
    )
    assert (severity, body) == (SEVERITIES[priority % 8], text)
    kept = {"syslog.facility": str(priority // 8)}
    places = ("host.name", "service.name", "syslog.procid", "syslog.msgid")
    kept.update((key, one) for key, one in zip(places, fields, strict=True) if one != "-")
    for name, pairs in data.items():
        prefix = f"syslog.structured_data.{name}"
        flat = {f"{prefix}.{key}": value for key, value in pairs.items()} or {prefix: ""}
        kept.update((key, value) for key, value in flat.items() if key not in kept)
    assert {key: attributes.get(key) for key in kept} == kept
    assert "sluice.error" not in attributes
    assert len(attributes) == 1 + sum(one != "-" for one in fields) + sum(
        max(1, len(pairs)) for pairs in data.values()
    )


OF_TIME = "(19|2[0-2])[0-9]{2}|[ap]m|utc|gmt"
"""Names of hosts that would be a part of the time in front of them."""


@given(
    priority=st.integers(0, 191), ago=st.timedeltas(timedelta(days=-1), timedelta(days=363)),
    host=st.from_regex(rf"(?!({OF_TIME})\Z)[a-z0-9.-]{{1,30}}", fullmatch=True),
    tag=st.from_regex(r"[A-Za-z0-9_/.-]{1,32}", fullmatch=True), pid=st.integers(0, 9999),
    text=texts,
)  # fmt: skip
def test_rfc_3164_is_read_back(
    priority: int, ago: timedelta, host: str, tag: str, pid: int, text: str
) -> None:
    at = (NOW - ago).replace(microsecond=0)
    stamp = f"{at:%b} {at.day:2d} {at:%H:%M:%S}"
    message = f"<{priority}>{stamp} {host} {tag}[{pid}]: {text}"
    assert record_of(message.encode()) == (
        int(at.timestamp()) * 10**9, SEVERITIES[priority % 8], text,
        {"syslog.facility": str(priority // 8), "host.name": host, "service.name": tag,
         "syslog.procid": str(pid)},
    )  # fmt: skip


@given(st.one_of(st.binary(max_size=300), st.from_regex(rb"<[0-9]{1,3}>1? ?.*", fullmatch=True)))
def test_any_bytes_are_one_record(data: bytes) -> None:
    record_of(data)


WORDS = st.sampled_from(
    [b"<13>", b"1 ", b"2026-11-22T00:00:00Z ", b"- ", b"[a", b' b="', b'\\"', b'"', b"]",
     b"Nov 22 ",
     b"Feb 29 ", b"08:00:00 ", b"99:99:99 ", b"0000-00-00T", b"+99:99 ", b"tag[",
     b"]: ",
     b"\xff", b"\0", b"\xef\xbb\xbf", b"9999 ", b":", b"."]
)  # fmt: skip


@given(st.lists(WORDS, max_size=20))
def test_any_order_of_parts_is_one_record_with_a_host(words: list[bytes]) -> None:
    message = b"".join([b"<13>", *words])
    *_, alone = record_of(message)
    *_, sent = record_of(message, "192.0.2.7")
    assert sent["host.name"] == alone.get("host.name", "192.0.2.7")


messages = st.binary(min_size=1, max_size=40).map(lambda data: b"<1>" + data)


@given(
    sent=st.lists(messages, min_size=1, max_size=8), sizes=st.lists(st.integers(1, 20), min_size=1),
    end=st.sampled_from([None, b"\n", b"\0", b"\r\n\0"]), bytes_max=st.integers(4, 50),
)  # fmt: skip
def test_messages_are_framed_however_they_arrive(
    sent: list[bytes], sizes: list[int], end: bytes | None, bytes_max: int
) -> None:
    if end is not None:
        sent = [one.translate(None, b"\r\n\0") for one in sent]
    if end == b"\r\n\0":
        sizes, bytes_max = [10_000], 60  # the line feed comes first: both have to arrive together
    stream = b"".join(b"%d %s" % (len(one), one) if end is None else one + end for one in sent)
    frames, pieces, at = SyslogFrames({}, bytes_max=bytes_max), [], 0
    while at < len(stream):
        size = sizes[at % len(sizes)]
        pieces += frames.feed(stream[at : at + size])
        at += size
    assert frames.end() == []
    whole: list[bytes] = []
    for piece in pieces:
        assert len(piece.data) <= bytes_max
        if piece.rest:
            whole[-1] += piece.data
        else:
            whole.append(piece.data)
    assert [one.rstrip(b"\r\n") if end else one for one in whole] == sent
    assert not pieces[-1].continues


@given(st.lists(st.binary(max_size=60), max_size=6), st.integers(4, 40))
def test_any_stream_is_bounded_and_never_raises(parts: list[bytes], bytes_max: int) -> None:
    frames = SyslogFrames({}, bytes_max=bytes_max)
    pieces = [piece for part in parts for piece in frames.feed(part)] + frames.end()
    decode_syslog(pieces, received_ns=NOW_NS, zone=UTC)
    assert all(len(piece.data) <= bytes_max for piece in pieces)
