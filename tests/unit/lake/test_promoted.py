"""Promoted columns of tables, and their values."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from support.repetitions import examples

from sluice_lake.data_files import list_files
from sluice_lake.delta import find_table, open_or_create_table
from sluice_lake.errors import CommitConflict, TableRefused
from sluice_lake.promoted import (
    add_promoted,
    converted,
    converted_text,
    map_texts,
    promoted_column,
    table_of,
    with_promoted_values,
)
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import LOGS, ColumnType
from sluice_protocol.promotions import PROMOTIONS_MAX, PromotedType, Promotion, column_of
from sluice_spark.commits import commit_files
from sluice_spark.compaction.rewrite import write_ordered

MAPS = pa.map_(pa.string(), pa.string())
CODED = pa.map_(*[pa.dictionary(pa.int32(), pa.string())] * 2)


def promotion(key: str, kind: PromotedType = PromotedType.TEXT, source: Any = "attributes") -> Any:
    return Promotion(
        kind="logs",
        source=source,
        key=key,
        column=column_of(source, key),
        type=kind,
        decided_by="operator:test",
        decided_at_unix_ns=1,
    )


INTEGERS = ["0", "-1", "500", str((1 << 63) - 1), str(-(1 << 63))]
NO_INTEGERS = ["", "-0", "+1", "007", "1.0", "1e3", " 1", "1\n", "\uff11", str(1 << 63), "9" * 400]
NO_FLOATS = ["", "nan", "NaN", "inf", "-inf", "1e999", "+1", ".5", "5.", "0x10", "1_0", "1" * 2000]


@pytest.mark.parametrize("text", INTEGERS)
def test_an_integer_is_the_number_that_was_sent(text: str) -> None:
    assert converted_text(text, ColumnType.LONG) == int(text)


@pytest.mark.parametrize("text", NO_INTEGERS)
def test_a_text_that_is_no_integer_is_null(text: str) -> None:
    assert converted_text(text, ColumnType.LONG) is None


@pytest.mark.parametrize(
    "text", ["0", "-0.0", "1.5", "0.1", "2e-3", "5e-324", "1" * 300, *INTEGERS]
)
def test_a_float_is_the_nearest_number(text: str) -> None:
    assert converted_text(text, ColumnType.DOUBLE) == float(text)


@pytest.mark.parametrize("text", NO_FLOATS)
def test_a_text_that_is_no_finite_number_is_null(text: str) -> None:
    assert converted_text(text, ColumnType.DOUBLE) is None


def test_booleans_are_true_and_false() -> None:
    texts = pa.array(["true", "false", "True", "1", "", None])
    expected = [True, False, None, None, None, None]
    assert converted(texts, ColumnType.BOOLEAN).to_pylist() == expected


@given(st.lists(st.one_of(st.none(), st.text(max_size=12), st.from_regex(r"-?[0-9]{1,22}"))))
def test_no_text_stops_a_conversion(texts: list[str | None]) -> None:
    """Nulls stay null, and a text alone converts as it does among others."""
    array = pa.array(texts, pa.string())
    for kind in (ColumnType.STRING, ColumnType.LONG, ColumnType.DOUBLE, ColumnType.BOOLEAN):
        found = converted(array, kind).to_pylist()
        alone = [None if text is None else converted_text(text, kind) for text in texts]
        assert found == alone


pairs = st.dictionaries(st.sampled_from(["k", "j", ""]), st.text(max_size=3), max_size=3)


@given(
    maps=st.lists(st.one_of(st.none(), pairs), max_size=12),
    start=st.integers(0, 12),
    count=st.integers(0, 12),
    kind=st.sampled_from([MAPS, CODED]),
)
@settings(max_examples=examples(300))
def test_a_key_is_found_as_in_a_mapping(
    maps: list[dict[str, str] | None], start: int, count: int, kind: pa.DataType
) -> None:
    """In whole arrays and in slices of them, with plain keys and with codes."""
    start = min(start, len(maps))
    array = pa.array([None if one is None else list(one.items()) for one in maps], MAPS)
    if kind is CODED:
        keys = array.keys.dictionary_encode()
        items = array.items.dictionary_encode()
        array = pa.MapArray.from_arrays(array.offsets, keys, items)
        maps = [one or {} for one in maps]
    found = map_texts(array.slice(start, count), "k").to_pylist()
    assert found == [(one or {}).get("k") for one in maps[start : start + count]]


def test_a_table_has_the_promoted_columns_of_its_schema(tmp_path: Path) -> None:
    """Other programs see the attribute in the comment; a column of theirs is none."""
    url = f"file://{tmp_path}"
    open_or_create_table(url, LOGS)
    wanted = [
        promotion("http.status", PromotedType.INTEGER),
        promotion("host.name", source="resource"),
    ]
    for _ in range(2):
        add_promoted(url, "logs", wanted)
    opened = find_table(url, LOGS, for_writing=True, extend=True)
    assert opened is not None
    assert opened.version() == 1
    table = table_of(opened, LOGS)
    assert table.promoted_columns == tuple(promoted_column(one) for one in wanted)
    assert [one.name for one in table.columns[-3:]] == [
        "attr_http_status",
        "res_host_name",
        "accepted_date",
    ]
    field = next(one for one in opened.schema().fields if one.name == "attr_http_status")
    assert field.metadata["comment"] == "attributes.http.status, or null if it does not convert"


def test_a_table_that_does_not_exist_is_left_to_its_first_writer(tmp_path: Path) -> None:
    add_promoted(f"file://{tmp_path}", "logs", [promotion("k")])
    assert find_table(f"file://{tmp_path}", LOGS) is None


def test_a_column_of_another_type_is_refused_and_stays(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    open_or_create_table(url, LOGS)
    add_promoted(url, "logs", [promotion("k")])
    with pytest.raises(TableRefused, match="column attr_k must be long, found string"):
        add_promoted(url, "logs", [promotion("k", PromotedType.INTEGER)])
    opened = find_table(url, LOGS, for_writing=True)
    assert opened is not None
    assert [one.type for one in table_of(opened, LOGS).promoted_columns] == [ColumnType.STRING]


def log_rows(*attributes: dict[str, str]) -> pa.Table:
    rows = [
        {
            "agent_id": "a",
            "boot_id": "b",
            "seq": seq,
            "ts_ns": seq,
            "body": "x",
            "attributes": list(one.items()),
            "resource": [],
            "accepted_date": 0,
        }
        for seq, one in enumerate(attributes)
    ]
    return pa.Table.from_pylist(rows, schema=arrow_schema(LOGS))


def commit(url: str, opened: DeltaTable, rows: pa.Table, number: int, *, knows: bool) -> None:
    table = table_of(opened, LOGS) if knows else LOGS
    commit_files(opened, table, list(write_ordered(url, table, rows.to_batches())), {0: number}, {})


def test_writers_of_any_state_commit_and_statistics_show_which_files_have_a_column(
    tmp_path: Path,
) -> None:
    """As many columns as may be, also after a checkpoint.

    A writer that opened the table before the columns were added meets them at its commit, and
    writes again; one that does not fill them adds files without them.
    """
    url = f"file://{tmp_path}"
    open_or_create_table(url, LOGS)
    old = find_table(url, LOGS, for_writing=True)
    assert old is not None
    types = list(PromotedType)
    many = [promotion(f"k{n}", types[n % len(types)]) for n in range(PROMOTIONS_MAX)]
    add_promoted(url, "logs", many)
    rows = log_rows({"k0": "x", "k61": "7", "k62": "1.5", "k63": "true"}, {"k61": "x"})
    with pytest.raises(CommitConflict):
        commit(url, old, rows, 1, knows=False)
    for number, knows in ((1, True), (2, False)):
        opened = find_table(url, LOGS, for_writing=True)
        assert opened is not None
        commit(url, opened, rows, number, knows=knows)
    opened = find_table(url, LOGS, for_writing=True)
    assert opened is not None
    opened.create_checkpoint()
    read = find_table(url, LOGS)
    assert read is not None
    names = [one.column for one in many]
    found = list_files(read, LOGS, promoted=names)
    (filled,) = (one.promoted for one in found if one.promoted)
    assert sorted(filled) == sorted(names)
    shown = {name: (one.nulls, one.bounds) for name, one in filled.items()}
    assert shown["attr_k0"] == (1, ("x", "x"))
    assert shown["attr_k61"] == (1, (7, 7))
    assert shown["attr_k62"] == (1, (1.5, 1.5))
    assert shown["attr_k63"] == (1, None)
    assert shown["attr_k1"] == (2, None)


def test_a_long_text_has_short_bounds_that_contain_it(tmp_path: Path) -> None:
    """The log of the table repeats them for each file."""
    url = f"file://{tmp_path}"
    open_or_create_table(url, LOGS)
    add_promoted(url, "logs", [promotion("k")])
    opened = find_table(url, LOGS, for_writing=True)
    assert opened is not None
    least, most = "a" * 1000, "z" * 1000
    commit(url, opened, log_rows({"k": least}, {"k": most}), 1, knows=True)
    (log,) = tmp_path.glob("lake/v1/logs/_delta_log/*2.json")
    (added,) = (json.loads(line)["add"] for line in log.read_text().splitlines() if '"add"' in line)
    stats = json.loads(added["stats"])
    assert stats["minValues"]["attr_k"] == "a" * 32 <= least
    assert stats["maxValues"]["attr_k"] == "z" * 32 + "\U0010ffff" >= most


def test_a_column_that_a_table_has_is_filled_again() -> None:
    column = promoted_column(promotion("k"))
    rows = log_rows({"k": "x"}).append_column("attr_k", pa.array(["stale"]))
    assert with_promoted_values(rows, [column]).column("attr_k").to_pylist() == ["x"]


@pytest.mark.parametrize("kind", PromotedType)
def test_a_text_of_a_resource_is_not_repeated_for_each_record(kind: PromotedType) -> None:
    """An array of Arrow has at most 2 GiB of text; a batch may have a million records."""
    count, long = 40_000, "1" * 60_000
    codes = pa.array([0, 1] * count, pa.int32())
    items = pa.DictionaryArray.from_arrays(codes, pa.array([long, "true"]))
    keys = pa.DictionaryArray.from_arrays(codes, pa.array(["k", "other"]))
    maps = pa.MapArray.from_arrays(pa.array(range(0, 2 * count + 1, 2), pa.int32()), keys, items)
    columns = [promoted_column(promotion(key, kind, "resource")) for key in ("k", "other")]
    rows = with_promoted_values(pa.table({"resource": maps}), columns)
    assert rows.column("res_k")[-1].as_py() == (long if kind is PromotedType.TEXT else None)
    wanted = {PromotedType.TEXT: "true", PromotedType.BOOLEAN: True}.get(kind)
    assert rows.column("res_other").to_pylist() == [wanted] * count
    assert rows.nbytes < 10_000_000
