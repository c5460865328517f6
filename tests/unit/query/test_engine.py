import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from sluice_lake.data_files import DataFile, RowGroup
from sluice_lake.locations import TableLocation
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import LOGS
from sluice_protocol.errors import BadUsage
from sluice_query import engine as engine_module
from sluice_query.engine import (
    PENDING,
    DataFilesUnreadable,
    IdleEngines,
    QueryEngine,
    QueryTimedOut,
    open_engine,
)
from sluice_query.settings import QuerySettings
from sluice_query.statements import SqlStatement


@pytest.fixture(scope="module")
def engine() -> Iterator[QueryEngine]:
    with open_engine(QuerySettings(threads=1)) as opened:
        yield opened


@pytest.mark.parametrize("pattern", ["(", "a{1001}", "[z-a]", r"(?<=x)y", r"\1"])
def test_a_pattern_that_re2_refuses_is_bad_usage(engine: QueryEngine, pattern: str) -> None:
    with pytest.raises(BadUsage, match="regex does not compile") as refused:
        engine.check_pattern(pattern)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("pattern", ["a+b", r"^\d{4}$", "[[:alpha:]]", "(?i)x", ""])
def test_a_pattern_of_re2_is_accepted(engine: QueryEngine, pattern: str) -> None:
    engine.check_pattern(pattern)


def test_a_pattern_with_nested_repetition_runs_in_linear_time(engine: QueryEngine) -> None:
    """A backtracking matcher would need exponential time."""
    engine.register_table(PENDING, pa.table({"body": ["a" * 100_000 + "!"]}))
    found = engine.rows(
        SqlStatement(
            "SELECT count(*) FROM pending WHERE regexp_matches(body, ?, 'c')", ("^(a|a|aa)*$",)
        )
    )
    assert found == [(0,)]


async def test_a_query_that_is_stopped_has_left_the_connection(engine: QueryEngine) -> None:
    """Its thread has ended when the caller continues, also if that is cancelled while it waits."""
    ended = threading.Event()

    def work() -> None:
        try:
            engine.rows(SqlStatement("SELECT sum(a.range) FROM range(1000000) a, range(1000000)"))
        finally:
            time.sleep(0.2)
            ended.set()

    with pytest.raises(QueryTimedOut):
        await engine.bounded(work, 0)
    assert ended.is_set()
    ended.clear()
    waiting = asyncio.create_task(engine.bounded(work, 0))
    for _ in range(4):
        await asyncio.sleep(0.02)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()


@pytest.mark.parametrize("files", [("old",), ("old", "new"), ("new", "old")])
@pytest.mark.parametrize("local", [True, False])
def test_a_file_without_an_added_column_has_null_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], local: bool
) -> None:
    """Both readers: of a directory, and of a bucket."""
    whole = arrow_schema(LOGS, partition=False)
    row = dict.fromkeys(whole.names) | {"body": "new", "level": "warn"}
    new = pa.Table.from_pylist([row], schema=whole)
    added = [column.name for column in LOGS.addable_columns]
    old = pa.Table.from_pylist([row | {"body": "old"}], schema=whole).drop_columns(added)
    pq.write_table(new, tmp_path / "new")
    pq.write_table(old, tmp_path / "old")
    location = TableLocation(uri=str(tmp_path))
    if not local:
        monkeypatch.setattr(TableLocation, "is_local", False)
        monkeypatch.setattr(engine_module, "open_filesystem", lambda _: (LocalFileSystem(), ""))
    found = [DataFile(path=name, partition="", size_bytes=1) for name in files]
    with open_engine(QuerySettings(threads=1)) as engine:
        engine.register_files("lake", found, location, LOGS)
        rows = engine.rows(SqlStatement("SELECT body, level, observed_ns FROM lake"))
    expected = {"old": ("old", None, None), "new": ("new", "warn", None)}
    assert sorted(rows) == sorted(expected[name] for name in files)


def is_folder(path: Path) -> bool:
    return path.is_dir()


def test_row_groups_are_read_from_files_with_other_columns(
    tmp_path: Path, engine: QueryEngine
) -> None:
    """The second file has them in another order and one more; the folder's name has a quote."""
    folder = tmp_path / "it's"
    folder.mkdir()
    tables = {
        "first": pa.table({"a": [1, 2], "b": ["v", "w"]}),
        "second": pa.table({"b": ["x", "y"], "c": [0, 0], "a": [3, 4]}),
    }
    files = []
    for number, (name, table) in enumerate(tables.items()):
        pq.write_table(table, folder / name, row_group_size=1)
        group = RowGroup(number=number, first=number, end=number + 1)
        size_bytes = (folder / name).stat().st_size
        files.append(
            DataFile(path=name, partition="", size_bytes=size_bytes, records=2, groups=(group,))
        )
    engine.register_files("lake", files, TableLocation(uri=str(folder)))
    assert engine.rows(SqlStatement("SELECT a, b FROM lake ORDER BY a")) == [(1, "v"), (4, "y")]


async def test_an_engine_ends_some_minutes_after_it_was_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An idle one without a query, and one that is in use after its query."""
    monkeypatch.setattr(engine_module, "ENGINE_S", 0.2)
    idle, settings = IdleEngines(), QuerySettings(threads=1)
    folders = []
    with open_engine(settings, idle) as engine:
        setting = SqlStatement("SELECT current_setting('temp_directory')")
        folders.append(Path(engine.rows(setting)[0][0]))
    assert is_folder(folders[0])
    await asyncio.sleep(0.3)
    assert not is_folder(folders[0])
    assert idle.pop() is None
    with open_engine(settings, idle):
        pass
    with open_engine(settings, idle) as engine:
        folders.append(Path(engine.rows(setting)[0][0]))
        await asyncio.sleep(0.3)
        assert is_folder(folders[1])
        assert engine.rows(SqlStatement("SELECT 1")) == [(1,)]
    assert not is_folder(folders[1])
    idle.close()


async def test_an_idle_engine_is_used_again_and_knows_no_names_of_earlier_queries(
    tmp_path: Path,
) -> None:
    idle, settings = IdleEngines(), QuerySettings(threads=1)
    with open_engine(settings, idle) as engine:
        engine.register_table(PENDING, pa.table({"body": ["a"]}))
        pq.write_table(pa.table({"body": ["a"]}), tmp_path / "one")
        files = [DataFile(path="one", partition="", size_bytes=1)]
        engine.register_files("lake", files, TableLocation(uri=str(tmp_path)))
        assert engine.rows(SqlStatement("SELECT body FROM lake")) == [("a",)]
        engine.define("CREATE TEMP TABLE series AS SELECT 1 AS one")
        first = engine._connection
    with open_engine(settings, idle) as engine:
        assert engine._connection is first
        views = "SELECT view_name FROM duckdb_views() WHERE NOT internal"
        tables = "SELECT table_name FROM duckdb_tables()"
        assert engine.rows(SqlStatement(f"{views} UNION ALL {tables}")) == []
        engine.register_table(PENDING, pa.table({"body": ["b"]}))
        assert engine.rows(SqlStatement("SELECT body FROM pending")) == [("b",)]
    with pytest.raises(BadUsage), open_engine(settings, idle) as engine:
        engine.check_pattern("(")
    with open_engine(settings, idle) as engine:
        assert engine._connection is not first  # a failed query closes its engine
        folder = Path(engine.rows(SqlStatement("SELECT current_setting('temp_directory')"))[0][0])
        assert is_folder(folder)
    idle.close()
    assert not is_folder(folder)


def test_a_footer_has_the_times_of_each_row_group(tmp_path: Path, engine: QueryEngine) -> None:
    """The times are not known where a record has none."""
    pq.write_table(pa.table({"ts_ns": [3, 1, 2, None, 5]}), tmp_path / "a", row_group_size=2)
    file = DataFile(path="a", partition="", size_bytes=1)
    found = engine.with_row_groups(TableLocation(uri=str(tmp_path)), file).groups or ()
    assert [(one.first, one.end, one.times_ns) for one in found] == [
        (0, 2, (1, 3)),
        (2, 4, None),
        (4, 5, (5, 5)),
    ]


def test_a_damaged_footer_is_a_reason(tmp_path: Path, engine: QueryEngine) -> None:
    (tmp_path / "a").write_bytes(b"PAR1 this is not Parquet")
    file = DataFile(path="a", partition="", size_bytes=24)
    with pytest.raises(DataFilesUnreadable, match="magic bytes"):
        engine.with_row_groups(TableLocation(uri=str(tmp_path)), file)
