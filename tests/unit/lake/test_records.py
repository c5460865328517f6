import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from support.builders import log_columns, make_identity, manifest_of

from sluice_lake.blobs import RejectedBlob, decode_blob
from sluice_lake.records import (
    DecodedBatch,
    kept_batches,
    payload_arrays,
    records_table,
    small_blobs_table,
)
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import RECORD_TABLES
from sluice_protocol.columns import Columns, kind_of, slice_columns
from sluice_protocol.fields import KINDS, FieldType, Kind
from sluice_protocol.frame import Resource, decode_frame, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import RecordRange
from sluice_protocol.records import (
    LogRecord,
    MetricPoint,
    logs_from_lines,
    logs_from_records,
    metrics_from_records,
)
from sluice_protocol.values import BooleanText, BytesText, IntegerText, JsonText

ACCEPTED_NS = 1_790_000_000_123_456_789
T0_NS = 1_790_000_000_000_001_999


RESOURCE = (("service.name", "web"), ("sluice.encoder", "c1 zstd-1"))


def batch(
    columns: Columns, start: int, sequence: int = 7, resource: Resource = RESOURCE
) -> DecodedBatch:
    end = start + len(columns) - 1
    who = Identity(agent_id="host-1", boot_id="b1", seq_start=start, seq_end=end)
    body = encode_frame(identity=who, columns=columns, resource=resource)
    return DecodedBatch(frame=decode_frame(body), accepted_at_ns=ACCEPTED_NS, sequence=sequence)


LOGS = logs_from_records(
    [
        LogRecord(ts_ns=T0_NS, body="ä", severity=9, attributes={"k": "v", "l": "w"}),
        LogRecord(ts_ns=-1, body="", attributes={}),
    ]
)
POINTS = metrics_from_records(
    [
        MetricPoint(ts_ns=T0_NS, name="cpu", value=1.5),
        MetricPoint(ts_ns=T0_NS, name="mem", value=2.5),
        MetricPoint(ts_ns=T0_NS, name="cpu", value=3.5),
    ]
)
OTHER_POINTS = metrics_from_records([MetricPoint(ts_ns=T0_NS, name="mem", value=4.5)])


@pytest.mark.parametrize("plain", [True, False])
def test_logs_become_rows_with_identity_times_and_maps(plain: bool) -> None:
    rows = records_table("logs", [batch(LOGS, 5)], plain=plain).to_pylist()
    assert [row["seq"] for row in rows] == [5, 6]
    assert [row["ts_ns"] for row in rows] == [T0_NS, -1]
    assert [row["ts"].microsecond for row in rows] == [1, 999_999]
    assert {row["accepted_at"].microsecond for row in rows} == {123_456}
    assert {row["queue_sequence"] for row in rows} == {7}
    assert [row["body"] for row in rows] == ["ä", ""]
    assert rows[0]["attributes"] == [("k", "v"), ("l", "w")]
    assert rows[1]["attributes"] == []
    # The version of the encoder belongs to no user.
    assert {tuple(row["resource"]) for row in rows} == {(("service.name", "web"),)}


@pytest.mark.parametrize("kind", ["logs", "metrics"])
def test_the_plain_form_has_the_schema_of_the_table(kind: Kind) -> None:
    """Except for what may come from the resource, of which each record has a code."""
    columns: Columns = LOGS if kind == "logs" else POINTS
    found = records_table(kind, [batch(columns, 0)], plain=True).schema
    coded = {one.name for one in KINDS[kind].derived if one.type is FieldType.NAME} | {"resource"}
    assert {one.name for one in found if pa.types.is_dictionary(one.type)} == coded
    plain = [one.with_type(one.type.value_type) if one.name in coded else one for one in found]
    assert pa.schema(plain) == arrow_schema(RECORD_TABLES[kind], partition=False)


def test_a_long_resource_is_not_repeated_for_each_record() -> None:
    """A request of 2 MB with a resource of 40 KB and 200,000 records would need 8 GB twice."""
    pairs = (("service.name", "x" * 40_000),)
    lines = logs_from_lines([b""] * 20_000, np.ones(20_000, np.int64))
    frame = encode_frame(identity=make_identity(0, count=20_000), columns=lines, resource=pairs)
    decoded = DecodedBatch(frame=decode_frame(frame), accepted_at_ns=1, sequence=0)
    manifest = manifest_of(frame)
    together = small_blobs_table("logs", [manifest], [frame])
    for table in (records_table("logs", [decoded], plain=True), together):
        assert table is not None
        assert table.nbytes < 4_000_000
        assert table.column("service")[-1].as_py() == "x" * 40_000
        assert table.column("resource")[-1].as_py() == list(pairs)


def test_batches_share_one_dictionary_of_metric_names() -> None:
    """A second dictionary in a row group would end the dictionary encoding of a Parquet file."""
    table = records_table("metrics", [batch(POINTS, 0), batch(OTHER_POINTS, 3, sequence=8)])
    chunks = table.column("name").chunks
    assert [chunk.dictionary.to_pylist() for chunk in chunks] == [["cpu", "mem"]] * 2
    assert table.column("name").to_pylist() == ["cpu", "mem", "cpu", "mem"]
    assert table.column("value").to_pylist() == [1.5, 2.5, 3.5, 4.5]
    assert table.column("queue_sequence").to_pylist() == [7, 7, 7, 8]


@pytest.mark.parametrize(
    ("key", "column"), [("app", "service"), ("host.name", "host"), ("lvl", "level")]
)
def test_a_parquet_file_has_batches_with_and_without_a_derived_field(key: str, column: str) -> None:
    """A writer of Parquet refuses a dictionary that contains a null."""
    lines = logs_from_records([LogRecord(ts_ns=T0_NS, body="x", attributes={})])
    resources: list[Resource] = [((key, "odd"),), (), ((key, "odd"), ("k", "v"))]
    batches = [batch(lines, at, resource=one) for at, one in enumerate(resources)]
    table = records_table("logs", batches)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    found = pq.read_table(pa.BufferReader(sink.getvalue()))
    assert found[column].to_pylist() == ["odd", None, "odd"]
    assert "odd" in table[column].chunk(0).dictionary.to_pylist()
    assert table[column].chunk(0).dictionary.null_count == 0


def test_batches_share_one_dictionary_of_the_keys_of_maps() -> None:
    names = ("a", "b")
    logs = [logs_from_records([LogRecord(ts_ns=1, body="", attributes={x: x})]) for x in names]
    batches = [
        batch(one, at, resource=((name, name),))
        for at, (one, name) in enumerate(zip(logs, names, strict=True))
    ]
    table = records_table("logs", batches)
    for column in ("attributes", "resource"):
        chunks = table.column(column).chunks
        assert [chunk.keys.dictionary.to_pylist() for chunk in chunks] == [["a", "b"]] * 2
        assert [chunk.to_pylist() for chunk in chunks] == [[[(x, x)]] for x in names]


def test_records_without_attributes_have_null() -> None:
    lines = logs_from_records([LogRecord(ts_ns=T0_NS, body="x", attributes={})])
    for plain in (True, False):
        table = records_table("logs", [batch(lines, 0), batch(LOGS, 1)], plain=plain)
        assert table.column("attributes").to_pylist()[0] is None
    assert table.column("attributes").to_pylist()[1] == [("k", "v"), ("l", "w")]


TYPED = logs_from_records(
    [
        LogRecord(ts_ns=1, body="", attributes={"k": "500", "n": IntegerText("500")}),
        LogRecord(ts_ns=2, body="", attributes={"k": BooleanText("true")}),
        LogRecord(ts_ns=3, body="", attributes={"k": "true"}),
        LogRecord(ts_ns=4, body="", attributes={}),
        LogRecord(ts_ns=5, body="", attributes={"a": BytesText(""), "b": JsonText("null")}),
    ]
)
TYPES = [[("n", "integer")], [("k", "boolean")], None, None, [("a", "bytes"), ("b", "json")]]


@pytest.mark.parametrize("plain", [True, False])
def test_a_record_has_the_types_of_its_values_that_are_not_text(plain: bool) -> None:
    table = records_table("logs", [batch(TYPED, 0)], plain=plain)
    assert table.column("attribute_types").to_pylist() == TYPES
    table.validate(full=True)


@pytest.mark.parametrize("plain", [True, False])
def test_batches_with_types_are_in_one_table_with_others(plain: bool) -> None:
    """The order of the rows is that of the batches, in the table and in a Parquet file of it."""
    bare = logs_from_records([LogRecord(ts_ns=1, body="", attributes={})] * 2)
    cut = slice_columns(TYPED, 1, 4)
    batches = [batch(one, at * 10) for at, one in enumerate([bare, TYPED, LOGS, cut, LOGS, bare])]
    table = records_table("logs", batches, plain=plain)
    wanted = [*[None] * 2, *TYPES, *[None] * 2, *TYPES[1:4], *[None] * 4]
    assert table.column("attribute_types").to_pylist() == wanted
    if plain:
        table = table.drop_columns("resource")  # a writer of Parquet refuses dictionaries of maps
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    found = pq.read_table(pa.BufferReader(sink.getvalue()))
    assert found.column("attribute_types").to_pylist() == wanted
    assert found.column("attributes").to_pylist() == table.column("attributes").to_pylist()


def test_a_column_of_nulls_has_no_dictionary() -> None:
    """A Parquet file writes such a column for less; one with a value keeps its dictionary."""
    plain = arrow_schema(RECORD_TABLES["logs"], partition=False)
    nulls = records_table("logs", [batch(LOGS, 0, resource=())])
    names = ("service", "host", "attribute_types")
    assert [nulls.schema.field(name).type for name in names] == [
        plain.field(one).type for one in names
    ]
    typed = records_table("logs", [batch(LOGS, 0), batch(TYPED, 2)])
    assert pa.types.is_dictionary(typed.schema.field("service").type)
    assert pa.types.is_dictionary(typed.schema.field("attribute_types").type.key_type)


def test_payload_arrays_are_named_as_in_the_table() -> None:
    found = payload_arrays(POINTS, [[("service.name", "shop")], []], [1, 2])
    own = ["name", "value", "type"]
    derived = ["service", "host", "instance"]
    assert list(found) == [*own, *derived, "attributes", "attribute_types"]
    table = pa.table(found)
    assert table.column("name").to_pylist() == ["cpu", "mem", "cpu"]
    assert table.column("service").to_pylist() == ["shop", None, None]
    schema = arrow_schema(RECORD_TABLES[kind_of(POINTS)])
    coded = pa.dictionary(pa.int32(), pa.string())
    wanted = [coded if name in derived else schema.field(name).type for name in found]
    assert table.schema.types == wanted


FRAME = encode_frame(identity=make_identity(7, count=5), columns=log_columns(list("abcde")))


@pytest.mark.parametrize(
    ("repeated", "kept"),
    [((), "abcde"), (((0, 2),), "cde"), (((1, 2), (3, 5)), "ac"), (((0, 5),), "")],
)
def test_repeated_records_are_left_out(repeated: tuple[RecordRange, ...], kept: str) -> None:
    one = replace(manifest_of(FRAME), repeated=repeated)
    frame = decode_blob(one, FRAME)
    assert not isinstance(frame, RejectedBlob)
    batches = kept_batches(frame, one, 3)
    if not kept:
        assert batches == []
        return
    table = records_table("logs", batches, plain=True)
    assert "".join(table.column("body").to_pylist()) == kept
    wanted = [7 + "abcde".index(body) for body in kept]
    assert table.column("seq").to_pylist() == wanted
    assert sum(one.frame.envelope.count for one in batches) == len(kept)
    assert set(table.column("queue_sequence").to_pylist()) == {3}


def test_such_batches_are_not_decoded_together() -> None:
    one = manifest_of(FRAME)
    assert small_blobs_table("logs", [one], [FRAME]) is not None
    assert small_blobs_table("logs", [replace(one, repeated=((0, 1),))], [FRAME]) is None
