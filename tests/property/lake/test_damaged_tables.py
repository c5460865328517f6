"""A damaged log or data file of a table is refused in one line, whichever file and however."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Transaction

from sluice_lake.data_files import list_files, list_partitions
from sluice_lake.delta import find_table, list_paths_at, open_or_create_table, read_lane_versions
from sluice_lake.errors import read_transaction
from sluice_lake.locations import lake_location
from sluice_lake.open_dead_letters import read_open_dead_letters
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import DEAD_LETTERS, LOGS, ingest_app_id
from sluice_protocol.errors import SluiceError
from sluice_spark.commits import (
    commit_files,
    commit_from_state,
    encode_commit_metadata,
    read_unreadable,
)
from sluice_spark.written_files import WrittenFile

COMMITS = range(1, 14)
CHECKPOINT_AFTER = 8
LINE_CHARS_MAX = 900
ENTRIES = (
    '{"add":5}',
    '{"add":{"path":5}}',
    "[]",
    '{"txn":{"appId":"sluice-ingest-1","version":"x"}}',
    '{"metaData":{"schemaString":"x"}}',
    '{"version":3,"size":1}',
    '{"version":99}',
)
EDITS = (
    ("2026-01", "2026-99"),
    ('"size":100', '"size":"x"'),
    ('numRecords\\":3', 'numRecords\\":\\"x'),
    ("partitionValues", "partitionvalues"),
    ('"path"', '"pat"'),
    ("T00:", "T99:"),
    ("sluice.through", "sluice.throug"),
    ('"1=', '"1-'),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with a table of 13 commits and a checkpoint."""
    root = tmp_path_factory.mktemp("sound")
    (root / "lake/v1").mkdir(parents=True)
    url = f"file://{root}"
    open_or_create_table(url, LOGS)
    for number in COMMITS:
        partition = f"2026-01-{number:02d}"
        stats = {
            "numRecords": 3,
            "minValues": {"ts": "2026-01-01T00:00:00.000000Z", "agent_id": "a"},
            "maxValues": {"ts": "2026-01-01T00:00:01.000000Z", "agent_id": "b"},
            "nullCount": {"ts": 0},
        }
        written = WrittenFile(
            table=LOGS.name,
            path=f"{LOGS.partition_column}={partition}/{number}.parquet",
            partition=partition,
            size_bytes=100,
            written_at_ms=1,
            stats=stats,
        )
        versions = {number % 4: number}
        commit_files(
            found(url), LOGS, [written], versions, encode_commit_metadata(versions, [(1, 2, 3)])
        )
        if number == CHECKPOINT_AFTER:
            found(url).create_checkpoint()
    return root


def found(url: str) -> DeltaTable:
    opened = find_table(url, LOGS, for_writing=True, extend=True)
    assert opened is not None
    return opened


def reads(url: str, before: DeltaTable | None) -> Iterator[Callable[[], object]]:
    """Yield what jobs and queries do with a log, which may be open before it is damaged."""

    def opened() -> DeltaTable:
        return before or found(url)

    location = lake_location(url, LOGS.name)
    yield lambda: list_files(opened(), LOGS)
    yield lambda: list_partitions(opened(), LOGS)
    yield lambda: list_paths_at(url, LOGS, 10, {0: 99})
    yield lambda: read_lane_versions(location, opened(), [0, 1, 2, 3, 7])
    yield lambda: read_transaction(opened(), ingest_app_id(1))
    yield lambda: read_unreadable(opened(), {1: 5})
    yield lambda: commit_files(opened(), LOGS, [], {1: 99}, {})
    yield lambda: commit_from_state(
        url, LOGS, [], [], data_change=False, advance=lambda _: Transaction("other", 1)
    )


def damage(rng: random.Random, log: Path) -> None:
    """Damage one file of a log."""
    path = rng.choice(sorted(log.iterdir()))
    content = path.read_bytes()
    match rng.randrange(7):
        case 0:
            path.write_bytes(content[: rng.randrange(len(content))])
        case 1:
            path.write_bytes(rng.randbytes(rng.randrange(200)))
        case 2:
            path.unlink()
        case 3:
            path.unlink()
            path.mkdir()
        case 4:
            path.write_text(rng.choice(ENTRIES))
        case 5 if path.suffix == ".json":
            text = content.decode()
            for old, new in rng.sample(EDITS, 2):
                text = text.replace(old, new)
            path.write_text(text)
        case _:
            changed = bytearray(content)
            for _ in range(rng.randrange(1, 4)):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)


@pytest.mark.daily(1)
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 330), marks=pytest.mark.long)])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_damaged_log_is_refused_in_one_line(
    seeds: range, is_open: bool, sound: Path, tmp_path: Path
) -> None:
    for seed in seeds:
        place = tmp_path / str(seed)
        shutil.copytree(sound, place)
        url = f"file://{place}"
        before = found(url) if is_open else None
        damage(random.Random(seed), place / "lake/v1" / LOGS.name / "_delta_log")
        for number, read in enumerate(reads(url, before)):
            try:
                read()
            except SluiceError as error:
                line = str(error)
                assert "\n" not in line, (seed, number)
                assert len(line) < LINE_CHARS_MAX, (seed, number)
        shutil.rmtree(place)


def test_damaged_metadata_of_a_commit_is_refused(sound: Path, tmp_path: Path) -> None:
    place = tmp_path / "copy"
    shutil.copytree(sound, place)
    entry = place / "lake/v1" / LOGS.name / "_delta_log" / f"{9:020d}.json"
    text = entry.read_text()
    assert '"1=9"' in text
    entry.write_text(text.replace('"1=9"', '"1-9"'))
    with pytest.raises(SluiceError, match="damaged metadata"):
        read_unreadable(found(f"file://{place}"), {1: 5})


@pytest.mark.parametrize("how", ["missing", "truncated", "page"])
def test_a_damaged_data_file_is_refused_in_one_line(how: str, tmp_path: Path) -> None:
    (tmp_path / "lake/v1").mkdir(parents=True)
    url = f"file://{tmp_path}"
    opened = open_or_create_table(url, DEAD_LETTERS)
    schema = arrow_schema(DEAD_LETTERS, partition=False)
    folder = tmp_path / "lake/v1" / DEAD_LETTERS.name / f"{DEAD_LETTERS.partition_column}=1"
    folder.mkdir()
    rows = pa.table(
        {field.name: pa.array([None] * 5000, field.type) for field in schema}, schema=schema
    )
    path = folder / "one.parquet"
    pq.write_table(rows, path)
    written = WrittenFile(
        table=DEAD_LETTERS.name,
        path=f"{folder.name}/{path.name}",
        partition="1",
        size_bytes=path.stat().st_size,
        written_at_ms=1,
        stats={"numRecords": 5000},
    )
    commit_files(opened, DEAD_LETTERS, [written], {}, {})
    content = path.read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "truncated":
            path.write_bytes(content[:-9])
        case _:
            path.write_bytes(content[:4] + b"\xff" * 400 + content[404:])
    with pytest.raises(SluiceError, match=r"a data file is (missing|damaged)") as caught:
        read_open_dead_letters(url)
    assert "\n" not in str(caught.value)
