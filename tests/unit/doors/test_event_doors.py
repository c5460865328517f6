"""Splunk, Firehose and Fluent to columns: each field has its documented place."""

import gzip
import json
import time
import tracemalloc
from collections.abc import Callable

import msgpack
import pytest
import zstandard
from support.door_bodies import (
    ARN,
    CLOUDWATCH,
    COMMON,
    CONTROL,
    FIREHOSE,
    FORWARD,
    HEC,
    STREAM,
    TIME,
    S,
    firehose,
    pack,
    zipped,
)
from support.golden import golden

from sluice_doors import decoded
from sluice_doors.decoded import (
    BodyTooLarge,
    BodyUnreadable,
    DecodedRecords,
    canonical,
    content_digest,
)
from sluice_doors.forward.messages import decode_forward
from sluice_doors.json.firehose import common_pairs, decode_firehose
from sluice_doors.json.hec import decode_events, decode_raw
from sluice_protocol.columns import MetricColumns, check_columns
from sluice_protocol.ndjson import ndjson_from_columns

NOW = 1_763_000_000_000_000_000
MIB = 1024 * 1024
Found = tuple[DecodedRecords, ...]


def events(body: bytes) -> Found:
    return decode_events(body, received_ns=NOW)


def fluent(body: bytes, bytes_max: int = 10 * MIB) -> Found:
    return decode_forward(body, received_ns=NOW, bytes_max=bytes_max)


def delivered(body: bytes) -> Found:
    return decode_firehose(body, common_pairs(COMMON, ARN), received_ns=NOW)


DECODED = {
    "hec": lambda: events(HEC),
    "hec_raw": lambda: decode_raw(
        b"one\r\n\ntwo \xff\n", {"host": "h", "source": "s", "index": ""}, received_ns=NOW
    ),
    "firehose": lambda: delivered(FIREHOSE),
    **{f"forward_{mode}": lambda body=body: fluent(body) for mode, body in FORWARD.items()},
}


def lines(found: Found) -> list[dict]:
    for one in found:
        check_columns(one.columns, len(one.columns))
    return [json.loads(line) for one in found for line in ndjson_from_columns(one.columns)]


@pytest.mark.parametrize("door", DECODED)
def test_every_field_is_kept_where_the_golden_file_shows_it(door: str) -> None:
    """The file pins the mapping and the digest: a change needs a new canonical form."""
    shown = [
        {
            "resource": dict(one.resource),
            "timed": one.timed,
            "unreadable": one.unreadable,
            "digest": content_digest(one).hex(),
            "records": lines((canonical(one),)),
        }
        for one in DECODED[door]()
    ]
    text = json.dumps(shown, indent=1, ensure_ascii=False) + "\n"
    assert golden(f"doors/{door}.json", text.encode()).decode() == text


def test_modes_of_fluent_have_the_same_digest() -> None:
    """A client that packs or compresses its entries again sends the same records."""
    bodies = [FORWARD[mode] for mode in ("forward", "packed", "compressed")]
    zstd = zstandard.compress(STREAM)
    bodies.append(pack(["app.access", zstd, {"compressed": "zstd"}]))
    assert len({content_digest(fluent(body)[0]) for body in bodies}) == 1


def test_several_messages_of_fluent_are_one_request() -> None:
    body = pack(["a", S, {"log": "1"}]) + pack(["b", S, {"log": "2"}])
    (found,) = fluent(body)
    assert found.resource == ()
    assert [line["attributes"]["fluent.tag"] for line in lines((found,))] == ["a", "b"]
    assert found.timed


@pytest.mark.parametrize(
    ("stated", "ns"),
    [
        (S, S * 10**9),
        (TIME, S * 10**9 + 5),
        (S + 0.5, S * 10**9 + 500_000_000),
        (msgpack.Timestamp(S, 7), S * 10**9 + 7),
        (msgpack.ExtType(0, bytes(3) + b"\1" + bytes(4)), 10**9),
        (10_413_792_000, None),
        (-1, None),
        (True, None),
        (float("nan"), None),
        (msgpack.ExtType(0, b"short"), None),
    ],
)
def test_times_of_fluent(stated: object, ns: int | None) -> None:
    (found,) = fluent(pack(["t", stated, {"log": "x"}]))
    (line,) = ndjson_from_columns(found.columns)
    assert found.columns.ts.tolist() == [NOW if ns is None else ns]
    assert (found.timed, found.unreadable) == (ns is not None, int(ns is None))
    assert ('"time":' in line) == (ns is None)


@pytest.mark.parametrize("stated", [0, None, msgpack.ExtType(0, bytes(8))])
def test_a_missing_time_of_fluent_is_that_of_receipt(stated: object) -> None:
    """Fluentd treats 0 as missing, too."""
    (found,) = fluent(pack(["t", stated, {"log": "x"}]))
    assert (found.columns.ts.tolist(), found.timed, found.unreadable) == ([NOW], False, 0)


@pytest.mark.parametrize(
    "message",
    [
        [], ["t"], ["t", S], ["t", {"a": 1}], ["t", S, {}, {}, {}], ["t", [[S, {}]], 5],
        [["t", [[S, {}]]], 1, 2, 3, 4], ["t", S, {"log": "x"}, "option"],
    ],
)  # fmt: skip
def test_a_message_of_another_form_is_kept(message: object) -> None:
    (found,) = fluent(pack(message))
    assert found.unreadable == len(lines((found,))) == 1
    assert "sluice.error" in lines((found,))[0]["attributes"]


def test_one_bad_entry_spoils_no_other() -> None:
    good = pack([S, {"log": "good"}])
    unhashable = b"\x92\xce" + S.to_bytes(4, "big") + b"\x81\x90\x01"
    (found,) = fluent(pack(["t", good + unhashable + good + b"\x92\x01"]))
    bodies = [line["body"] for line in lines((found,))]
    assert bodies == ["good", "", "good", ""]
    assert found.unreadable == 2


@pytest.mark.parametrize("name", ["fluent_signal", "compressed", "chunk", "size"])
@pytest.mark.parametrize("value", [[1], {"a": 1}, b"\xff", True, 2**63, None, 1.5])
def test_options_of_another_type_end_nothing(name: str, value: object) -> None:
    (found,) = fluent(pack(["t", STREAM, {name: value}]))
    assert len(lines((found,))) in (1, 6)


def test_metrics_of_fluent_bit_are_kept_raw() -> None:
    (found,) = fluent(pack(["t", b"cmetrics", {"fluent_signal": 1}]))
    (line,) = lines((found,))
    assert line["attributes"]["sluice.error"] == "metrics of Fluent Bit are not decoded"


def test_a_stream_that_is_no_messagepack_is_refused() -> None:
    for body in (b"\xc1", b"\x93\x01", b"\x91" * 5000):
        with pytest.raises(BodyUnreadable):
            fluent(body)


def test_a_compressed_bomb_of_fluent_is_refused() -> None:
    bomb = gzip.compress(bytes(50 * MIB))
    tracemalloc.start()
    with pytest.raises(BodyTooLarge):
        fluent(pack(["t", bomb, {"compressed": "gzip"}]), MIB)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MIB


def test_lengths_that_are_only_claimed_allocate_nothing() -> None:
    """An array of four thousand million elements takes five bytes to claim."""
    claim = b"\x92\xce" + S.to_bytes(4, "big") + b"\x81\xa1a" + b"\xdd\xff\xff\xff\xff" * 500
    tracemalloc.start()
    (found,) = fluent(pack(["t", claim]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.unreadable, peak < 4 * MIB) == (1, True)


@pytest.mark.daily(1)
@pytest.mark.parametrize("value", [b"\x80", b"\x90"], ids=["maps", "arrays"])
def test_a_record_of_empty_maps_or_arrays_is_kept_raw(value: bytes) -> None:
    """Each takes seventy bytes when it is built, and one in the message."""
    count = 2 * MIB
    record = b"\x81\xa1a\xdd" + count.to_bytes(4, "big") + value * count
    (found,) = fluent(pack(["t", b"\x92\x01" + record]))
    (line,) = lines((found,))
    assert line["attributes"]["sluice.error"] == "value has too many maps and arrays"


@pytest.mark.parametrize("count", [50_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_record_with_many_attributes(count: int) -> None:
    wide = {f"k{place}": "" for place in range(count)}
    (found,) = fluent(pack(["t", S, wide]), 100 * MIB)
    assert len(found.columns.attributes.names) == count
    (found,) = events(json.dumps({"time": S, "event": wide}).encode())
    assert len(found.columns.attributes.names) == count


@pytest.mark.parametrize(
    "send",
    [
        lambda: fluent(b"\x90" * 101),
        lambda: fluent(pack(["t", b"\x01" * 101])),
        lambda: events(b'{"event":1}' * 101),
        lambda: events(b"[" + b"{}," * 100 + b"{}]"),
        lambda: decode_raw(b"a\n" * 101, {}, received_ns=NOW),
        lambda: delivered(firehose(b"{}\n" * 101)),
    ],
    ids=["messages", "entries", "events", "array", "lines", "objects"],
)
def test_the_number_of_records_is_limited(
    monkeypatch: pytest.MonkeyPatch, send: Callable[[], Found]
) -> None:
    """A record may be as short as a byte, and takes much more when it is decoded."""
    monkeypatch.setattr(decoded, "RECORDS_MAX", 100)
    with pytest.raises(BodyTooLarge, match="records"):
        send()


def test_events_of_splunk_may_touch_or_have_spaces_or_be_in_arrays() -> None:
    one = b'{"time":5,"event":"a"}'
    bodies = [one + one, one + b"\n" + one, one + b" \t\r\n" + one, b"[" + one + b"," + one + b"]"]
    assert len({content_digest(events(body)[0]) for body in bodies}) == 1


def test_a_bad_event_of_splunk_spoils_no_other() -> None:
    body = b'{"time":5,"event":"a"}{"time":\n{"time":6,"event":"b"} what\n7\n{"time":8}\n'
    (found,) = events(body)
    assert [line["body"] for line in lines((found,))] == ["a", '{"time":', "b", "what", "7",
                                                         '{"time":8}']  # fmt: skip
    assert found.unreadable == 4


@pytest.mark.parametrize(
    "bad", [b"what", b"7", b"\xff", b"[" * 9000, b'{"a":' * 5000, b'{"a":NaN}']
)
def test_a_bad_event_of_splunk_is_kept_raw_alone_and_among_others(bad: bytes) -> None:
    for before in (b"", b'{"time":5,"event":"a"}'):
        (found,) = events(before + b"\n" + bad)
        assert lines((found,))[-1]["body"] == bad.decode(errors="replace")
        assert (found.unreadable, len(found.columns)) == (1, 1 + bool(before))


def test_a_body_of_splunk_that_is_no_text_is_refused() -> None:
    with pytest.raises(BodyUnreadable, match="no text"):
        events(b"\x1f\x8b\x08\x00")


def test_the_time_of_an_event_keeps_nine_decimals() -> None:
    (found,) = events(b'{"time":1795788000.123456789,"event":"a"}')
    assert found.columns.ts.tolist() == [1_795_788_000_123_456_789]


@pytest.mark.parametrize(
    ("stated", "ns"),
    [
        (b'"1763769600.123456789"', S * 10**9 + 123_456_789),
        (b"1763769600.123", S * 10**9 + 123_000_000),
        (b"1763769600123", S * 10**9 + 123_000_000),
        (b'" 1 "', 10**9),
        (b'"2025-11-22T00:00:00Z"', S * 10**9),
        (b'"10413792000"', None),
        (b'"1e999999999999"', None),
        (b'"NaN"', None),
        (b"-1", None),
        (b"true", None),
    ],
)
def test_times_of_splunk(stated: bytes, ns: int | None) -> None:
    (found,) = events(b'{"event":"a","time":' + stated + b"}")
    assert found.columns.ts.tolist() == [NOW if ns is None else ns]
    assert (found.timed, found.unreadable) == (ns is not None, int(ns is None))


def test_a_metric_of_splunk_without_a_number_is_a_stale_marker() -> None:
    (found,) = events(b'{"time":5,"event":"metric","fields":{"metric_name:a":"x","r":"eu"}}')
    (line,) = lines((found,))
    assert isinstance(found.columns, MetricColumns)
    assert (line["value"], line["attributes"]["sluice.raw"]) == ("NaN", '"x"')


def test_fields_of_an_object_that_share_a_name_are_both_kept() -> None:
    (found,) = events(b'{"time":5,"event":"a","host":"x","host.name":"y","":"z"}')
    assert dict(found.resource) == {
        "host.name": "x",
        "duplicate.host.name": "y",
        "sluice.empty_key": "z",
    }


@pytest.mark.parametrize(
    "body",
    [
        b'{"event":"a\\ud800"}',
        b'{"event":"a","host":"\\ud800"}',
        b'{"event":"a","fields":{"\\ud800":"\\udfff","k":"\\udc80\\ud800"}}',
        b'{"no event":"\\ud800"}',
    ],
)
def test_half_of_a_surrogate_pair_is_kept_raw(body: bytes) -> None:
    """JSON may contain one; UTF-8 cannot."""
    found = events(body)
    [line] = lines(found)
    assert "sluice.error" in line["attributes"]
    assert found[0].unreadable == 1
    assert content_digest(found[0]) == content_digest(events(body)[0])


def test_damage_in_a_long_body_of_splunk_takes_linear_time() -> None:
    """An error in a text counts the lines before it. Quadratic time would be 400 times as much."""

    def spent_s(count: int) -> float:
        started = time.thread_time()
        events(b'{"event":"a"}{\n' + b'{"a":\n' * count)
        return time.thread_time() - started

    few, many = (min(spent_s(count) for _ in range(3)) for count in (1_000, 20_000))
    assert many < 80 * max(few, 0.001)


def test_records_of_cloudwatch_have_their_group_in_common() -> None:
    (found,) = delivered(firehose(zipped(CLOUDWATCH)))
    assert dict(found.resource)["aws.log.group.name"] == "/aws/lambda/shop"
    assert dict(found.resource)["deployment"] == "prod"
    assert [line["body"] for line in lines((found,))] == ["START", "{}", "7"]


def test_payloads_that_firehose_has_decompressed_are_the_same() -> None:
    plain = json.dumps(CLOUDWATCH).encode()
    assert content_digest(delivered(firehose(plain))[0]) == content_digest(
        delivered(firehose(zipped(CLOUDWATCH)))[0]
    )


def test_a_request_without_records_is_empty() -> None:
    assert delivered(firehose()) == ()


@pytest.mark.parametrize("body", [firehose(zipped(CONTROL)), firehose(b""), firehose(b"\n")])
def test_a_record_without_text_is_a_record(body: bytes) -> None:
    """Firehose sends a refused request again, also one that only tests the connection."""
    (found,) = delivered(body)
    assert len(found.columns) == 1


@pytest.mark.parametrize("between", [b"", b"\n"])
def test_two_payloads_of_cloudwatch_in_a_record(between: bytes) -> None:
    plain = json.dumps(CLOUDWATCH).encode()
    (found,) = delivered(firehose(gzip.compress(plain + between + plain)))
    (twice,) = delivered(firehose(zipped(CLOUDWATCH), zipped(CLOUDWATCH)))
    assert lines((found,)) == lines((twice,))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"records":5}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_request_of_firehose_is_refused(body: bytes) -> None:
    with pytest.raises(BodyUnreadable):
        delivered(body)


def test_damaged_records_of_firehose_are_kept_as_they_came() -> None:
    body = b'{"records":[{"data":"!"},{"data":5},null,{"data":"H4sIAAAA"}]}'
    (found,) = delivered(body)
    assert [line["body"] for line in lines((found,))] == [
        "!", '{"data":5}', "null", "H4sIAAAA",
    ]  # fmt: skip
    assert found.unreadable == 4


def test_a_bomb_in_a_record_of_firehose_is_refused() -> None:
    with pytest.raises(BodyTooLarge):
        delivered(firehose(*[gzip.compress(bytes(40 * MIB))] * 2))


def test_common_attributes_that_are_not_json_are_kept() -> None:
    assert common_pairs("what", "") == {"aws.firehose.common_attributes": "what"}
    assert common_pairs('{"commonAttributes":5}', "arn")["aws.firehose.source_arn"] == "arn"
    assert common_pairs("", "") == {}
