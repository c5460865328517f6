"""What the engine computes from records equals what Python computes from the same records."""

from collections import Counter
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.query_views import (
    FIELDS,
    SOURCES,
    found_rows,
    opened,
    random_query,
    random_record,
    value_of,
)
from support.repetitions import examples

from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import UnixNs
from sluice_query.request import (
    FieldList,
    FilterOperator,
    Histogram,
    Query,
    RecordFilter,
    TopValues,
    choose_width,
)
from sluice_query.result import Row
from sluice_query.views import (
    fields_sql,
    histogram_sql,
    make_fields,
    make_histogram,
    make_values,
    values_sql,
)

EXAMPLES = settings(max_examples=examples(60), deadline=None)
seeds = st.integers(0, 2**32)


def in_order(counted: Counter[object]) -> list[tuple[object, int]]:
    """Return values by count, then by value; the missing one last."""
    return sorted(
        counted.items(), key=lambda one: (-one[1], one[0] is None, (str(type(one[0])), one[0]))
    )


@given(seed=seeds)
@EXAMPLES
def test_each_record_of_the_search_is_in_its_bucket(seed: int) -> None:
    random = Random(seed)
    records = [random_record(random, seq) for seq in range(random.choice((0, 1, 5, 60)))]
    query = random_query(random)
    buckets = random.choice((4, 10, 60, 1000))
    width_ns = choose_width(query.from_ns, query.to_ns, buckets)
    by = random.choice((None, *FIELDS))
    histogram = Histogram(step_ns=width_ns, by=by, top=random.choice((1, 2, 20)))
    engine = opened(records, random.randint(0, len(records)))
    found = found_rows(engine, query)
    rows = engine.rows(histogram_sql(query, histogram, SOURCES))
    result = make_histogram(query, histogram, rows)
    assert len(result.buckets) <= buckets
    assert sum(one.count for one in result.buckets) == len(found)
    in_bucket: dict[int, list[Row]] = {}
    for row in found:
        in_bucket.setdefault(int(str(row["ts_ns"])) // width_ns * width_ns, []).append(row)
    starts = [parse_rfc3339(one.ts) for one in result.buckets]
    assert set(in_bucket) <= set(starts)
    assert starts[0] <= query.from_ns < starts[0] + width_ns
    assert starts[-1] < query.to_ns <= starts[-1] + width_ns
    for start, bucket in zip(starts, result.buckets, strict=True):
        assert bucket.count == len(in_bucket.get(start, []))
    if by is None:
        assert result.split is None
        return
    assert result.split is not None
    total = Counter(value_of(row, by) for row in found)
    assert len(result.split.values) == min(len(total), histogram.top)
    counts = [total[value] for value in result.split.values]
    assert counts == sorted(total.values(), reverse=True)[: histogram.top]
    for start, bucket in zip(starts, result.buckets, strict=True):
        here = Counter(value_of(row, by) for row in in_bucket.get(start, []))
        named = [here.pop(value, 0) for value in result.split.values]
        assert (list(bucket.counts), bucket.other) == (named, sum(here.values()))


@given(seed=seeds)
@EXAMPLES
def test_values_are_counted_exactly(seed: int) -> None:
    random = Random(seed)
    records = [random_record(random, seq) for seq in range(random.choice((0, 1, 5, 60)))]
    query, field = random_query(random), random.choice(FIELDS)
    top = TopValues(field=field, limit=random.choice((1, 3, 100)))
    engine = opened(records, random.randint(0, len(records)))
    found = found_rows(engine, query)
    rows = engine.rows(values_sql(query, top, SOURCES, records_max=1000))
    result = make_values(top, rows, records_max=1000)
    counted = Counter(value_of(row, field) for row in found)
    missing = counted.pop(None, 0)
    assert (result.records, result.missing, result.distinct) == (len(found), missing, len(counted))
    assert not result.sampled
    shown = [(one.value, one.count) for one in result.values]
    assert shown == in_order(counted)[: top.limit]


@given(seed=seeds)
@EXAMPLES
def test_fields_are_counted_exactly(seed: int) -> None:
    random = Random(seed)
    records = [random_record(random, seq) for seq in range(random.choice((0, 1, 5, 60)))]
    query, wanted = random_query(random), FieldList()
    engine = opened(records, random.randint(0, len(records)))
    found = found_rows(engine, query)
    rows = engine.rows(fields_sql(query, wanted, SOURCES, records_max=1000))
    result = make_fields(query, wanted, rows, records_max=1000)
    counted = {
        field.name: sum(value_of(row, field) is not None for row in found) for field in FIELDS
    }
    assert {one.field: one.count for one in result.fields} == {
        name: count for name, count in counted.items() if count
    }
    assert (result.records, result.sampled, result.more) == (len(found), False, False)


def test_counting_stops_at_its_bound() -> None:
    random = Random(1)
    records = [random_record(random, seq) | {"ts_ns": 5} for seq in range(50)]
    query = Query(from_ns=UnixNs(0), to_ns=UnixNs(9))
    top = TopValues(field=FIELDS[0])
    engine = opened(records, 25)
    values = make_values(
        top, engine.rows(values_sql(query, top, SOURCES, records_max=10)), records_max=10
    )
    fields = make_fields(
        query,
        FieldList(keys_max=1),
        engine.rows(fields_sql(query, FieldList(keys_max=1), SOURCES, records_max=10)),
        records_max=10,
    )
    assert (values.records, values.sampled) == (11, True)
    assert (fields.records, fields.sampled, fields.more) == (11, True, True)


def meets(row: Row, one: RecordFilter) -> bool:
    value: Any = value_of(row, one.field)
    if one.operator is FilterOperator.ABSENT:
        return value is None
    if one.operator is FilterOperator.UNEQUAL:
        return bool(value != one.value)
    if value is None:
        return False
    at_least = one.operator is FilterOperator.AT_LEAST
    return bool(value >= one.value if at_least else value <= one.value)


@given(seed=seeds)
@EXAMPLES
def test_filters_select_what_python_selects(seed: int) -> None:
    """Several `=` of one field are alternatives; everything else must be met."""
    random = Random(seed)
    records = [random_record(random, seq) for seq in range(40)]
    query = random_query(random)
    plain = Query(from_ns=query.from_ns, to_ns=query.to_ns, limit=query.limit)
    filtered = Query(
        from_ns=query.from_ns, to_ns=query.to_ns, limit=query.limit, filters=query.filters
    )
    equal: dict[object, set[object]] = {}
    for one in query.filters:
        if one.operator is FilterOperator.EQUAL:
            equal.setdefault(one.field, set()).add(one.value)
    engine = opened(records, random.randint(0, len(records)))
    every, found = found_rows(engine, plain), found_rows(engine, filtered)
    wanted = [
        row["seq"]
        for row in every
        if all(value_of(row, field) in values for field, values in equal.items())
        and all(meets(row, one) for one in query.filters if one.operator != "=")
    ]
    assert [row["seq"] for row in found] == wanted
