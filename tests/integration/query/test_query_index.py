"""Index chunks rule out files that cannot match, and no other file."""

from pathlib import Path

import pytest
from support.query_lake import (
    DAY0_NS,
    bodies,
    deployment,
    log_batch,
    make_query,
    many_lines,
    run_query,
    sent,
)
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_lake.data_files import list_files
from sluice_lake.delta import find_table
from sluice_lake.tables import LOGS, SPANS, Table
from sluice_protocol.fields import KINDS
from sluice_protocol.records import SpanRecord, spans_from_records
from sluice_protocol.units import UnixNs
from sluice_query.parameters import parse_trace
from sluice_spark.index import group_files, make_chunk

RACKS = ("frankfurt", "helsinki-east", "ljubljana", "reykjavik", "valletta-2")
FILES = len(RACKS)


def _index(place: Deployment, table: Table = LOGS) -> None:
    opened = find_table(place.url, table)
    assert opened is not None
    kind = next(one for one in KINDS.values() if one.name == table.name)
    for group in group_files(list_files(opened, table)):
        assert make_chunk(place.url, kind, group)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    made = deployment(tmp_path_factory.mktemp("index"), lanes=1)
    for number, name in enumerate(RACKS):
        lines = [*many_lines(500, seed=number), f"kernel panic: rack {name} größer (init)"]
        made.deliver([log_batch(lines, start=number * 1000, step_ns=1_000_000)])
        ingest_locally(made.url)
    _index(made)
    made.deliver([log_batch(["kernel panic: rack thessaloniki waits"], start=9000)])
    return made


@pytest.mark.daily(6)
@pytest.mark.parametrize(
    ("changes", "wanted", "read"),
    [
        ({"text": "rack ljubljana"}, ["kernel panic: rack ljubljana größer (init)"], 1),
        ({"text": "ck ljubljana größ"}, ["kernel panic: rack ljubljana größer (init)"], 1),
        ({"logql": r"{} |~ `^kernel.*reykjavik gr.*\(init`"}, 1, 1),
        ({"text": "rack copenhagen"}, [], 0),
        ({"text": "rack thessaloniki"}, ["kernel panic: rack thessaloniki waits"], 0),
        ({"text": "kernel panic:"}, FILES + 1, FILES),
        ({"text": "panic"}, FILES + 1, FILES),
        ({"logql": '{} |= "RACK LJUBLJANA"'}, 0, 1),
        ({"logql": '{} |~ "(?i)RAC. LJUBLJANA"'}, 1, 1),
        ({"logql": '{} |~ "(?i)RACK"'}, FILES + 1, FILES),
        ({"logql": '{} |~ "(?i)RACK LJUBLJANA GRÖSSER"'}, 0, 1),
        ({"logql": '{} |~ "rack ljubljana|rack reykjavik"'}, 2, 2),
        ({"logql": '{} |~ "(?i)RACK (ljubljana|reykjavik) GR"'}, 2, 2),
        ({"logql": '{} |~ "panics?: rack lj"'}, 1, 1),
        ({"logql": '{} |= "rack ljubljana" or "rack copenhagen"'}, 1, 1),
        ({"logql": '{} |> "kernel<_>rack ljubljana<_>"'}, 1, 1),
    ],
)
def test_files_that_cannot_match_are_not_read(
    place: Deployment, changes: dict[str, object], wanted: list[str] | int, read: int
) -> None:
    """The result is that of a full scan."""
    result = run_query(place, make_query(**changes))
    assert (len(bodies(result)) if isinstance(wanted, int) else bodies(result)) == wanted
    assert result.summary.segments_read == read
    assert result.summary.segments_pruned == FILES - read


def test_damaged_and_missing_chunks_rule_nothing_out(tmp_path: Path) -> None:
    made = deployment(tmp_path, lanes=1)
    made.deliver([log_batch(["needle in a haystack", "hay"])])
    ingest_locally(made.url)
    _index(made)
    made.deliver([log_batch(["another needle in a haystack"], start=5, from_ns=DAY0_NS + 9)])
    ingest_locally(made.url)
    found = make_query(text="needle in a haystack")
    assert len(bodies(run_query(made, found))) == 2
    nowhere = make_query(text="no such needle in here")
    assert run_query(made, nowhere).summary.segments_read == 1
    for path in (made.root / "index").rglob("*.lmindex"):
        path.write_bytes(b"damaged")
    assert len(bodies(run_query(made, found))) == 2
    assert run_query(made, nowhere).summary.segments_read == 2


@pytest.mark.long
def test_a_chunk_that_was_removed_rules_nothing_out(tmp_path: Path) -> None:
    """The index job removes chunks of replaced files; a reader of an older state may need them."""
    made = deployment(tmp_path, lanes=1)
    found, nowhere = make_query(text="needle in a haystack"), make_query(text="no such needle here")
    for number in range(3):
        line = f"needle in a haystack {number}"
        made.deliver([log_batch([line], start=number * 10, from_ns=DAY0_NS + number)])
        ingest_locally(made.url)
        opened = find_table(made.url, LOGS)
        assert opened is not None
        make_chunk(made.url, KINDS["logs"], [list_files(opened, LOGS)[-1]])
    chunks = sorted((made.root / "index").rglob("*.lmindex"))
    lines = bodies(run_query(made, found))
    assert len(lines) == 3
    before = run_query(made, nowhere).summary.segments_read
    for count, path in enumerate(chunks, 1):
        path.unlink()
        assert run_query(made, nowhere).summary.segments_read == before + count
        assert bodies(run_query(made, found)) == lines


@pytest.mark.long
def test_a_look_up_of_a_trace_reads_only_files_with_its_id(tmp_path: Path) -> None:
    """Of spans and of logs; alternatives read the files of each, and a pattern reads all."""
    made = deployment(tmp_path, lanes=1)
    ids = [f"{number:032x}" for number in range(1, 5)]
    for number, trace in enumerate(ids):
        spans = [SpanRecord(ts_ns=DAY0_NS, name="op", trace_id=trace)] * 3
        made.deliver([sent(spans_from_records(spans), start=number * 10)])
        start = 1_000 + number * 10
        made.deliver([log_batch(["a line"], start=start, attributes={"trace_id": trace.upper()})])
        ingest_locally(made.url)
    for table in (LOGS, SPANS):
        _index(made, table)
    for trace in ids:
        result = run_query(made, parse_trace(trace, {}, UnixNs(DAY0_NS)))
        assert (len(result.records), result.summary.segments_read) == (3, 1)
    unknown = run_query(made, parse_trace("f" * 32, {}, UnixNs(DAY0_NS)))
    assert (unknown.records, unknown.summary.segments_read) == ([], 0)
    for condition, found, read in (("=", 1, 1), ("=~", 1, 4), ("!=", 3, 4)):
        result = run_query(made, make_query(f'{{trace_id{condition}"{ids[2]}"}}'))
        assert (len(result.records), result.summary.segments_read) == (found, read)
