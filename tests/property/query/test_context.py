"""Neighbours read through windows are those that reading everything finds."""

from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.query_views import opened, random_record
from support.repetitions import examples

from sluice_protocol.units import UnixNs
from sluice_query.request import END_NS, FIRST_NS, Neighbourhood, Query
from sluice_query.statements import RecordSources, returned_columns
from sluice_query.views import SequenceWindow, WindowSources, find_neighbours

SEQ = returned_columns("logs").index("seq")
SPREAD = (1, 700, 40_000, 2_000_000, 2_000_000)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(60), deadline=None)
def test_windows_find_the_closest_records(seed: int) -> None:
    """The records of one source are between those of the other, which may always be open.

    The record is often the first one after those between.
    """
    random = Random(seed)
    count, spread = random.choice((0, 3, 30, 30)), random.choice(SPREAD)
    places = sorted(random.sample(range(100), count))
    records = [random_record(random, n * spread) | {"boot_id": "b1", "ts_ns": 5} for n in places]
    start, end = sorted(random.choices(range(count + 1), k=2))
    files = {"lake": records[start:end], "pending": records[:start] + records[end:]}
    always = random.choice(((), ("pending",), ("pending",)))
    around = Neighbourhood(
        boot_id="b1",
        seq=random.choice([0, 50, *places, *places[end : end + 1] * count]) * spread,
        before=random.choice((0, 0, 1, 5)),
        after=random.choice((0, 0, 1, 5)),
    )
    query = Query(from_ns=UnixNs(FIRST_NS), to_ns=UnixNs(END_NS), view=around)
    windows = 0

    def open_window(window: SequenceWindow) -> WindowSources:
        nonlocal windows
        windows += 1
        names, earlier, later = [], False, False
        for name, rows in files.items():
            seqs = [int(str(row["seq"])) for row in rows]
            if name in always or not seqs:
                names.append(name)
            elif seqs[-1] < window.first:
                earlier = True
            elif seqs[0] > window.last:
                later = True
            else:
                names.append(name)
        sources = RecordSources(names=tuple(names))
        return WindowSources(sources=sources, earlier_left=earlier, later_left=later)

    engine = opened([*files["lake"], *files["pending"]], end - start)
    found = find_neighbours(engine, query, around, open_window)
    every = [n * spread for n in places]
    before = [n for n in every if n < around.seq][-around.before - 1 :]
    after = [n for n in every if n > around.seq][: around.after + 1]
    assert seqs_of(found.before) == before
    assert seqs_of(found.after) == after
    assert (found.record is not None) == (around.seq in every)
    assert windows <= 12


def seqs_of(rows: Sequence[tuple[object, ...]]) -> list[int]:
    return [int(str(row[SEQ])) for row in rows]
