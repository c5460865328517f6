"""The canonical form: equal records have one digest, and every difference changes it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from support.otlp_requests import LOG_REQUEST, METRIC_REQUEST

from sluice_doors.decoded import DecodedRecords, canonical, content_digest, take_texts
from sluice_doors.otlp.http import PROTOBUF, decode_otlp_logs, decode_otlp_metrics
from sluice_protocol.columns import (
    AttributeColumns,
    LogColumns,
    MetricColumns,
    NameColumn,
    check_columns,
    take_pairs,
)


def logs(received_ns: int = 1) -> DecodedRecords:
    (found,) = decode_otlp_logs(LOG_REQUEST.SerializeToString(), PROTOBUF, received_ns=received_ns)
    return found


def shuffled(columns: AttributeColumns, seed: int) -> AttributeColumns:
    """Return the same attributes with other orders of names and of each record's pairs."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(len(columns.names))
    place = np.argsort(names).astype(np.uint32)
    edges = columns.offsets.tolist()
    pairs = np.concatenate([rng.permutation(np.arange(a, b)) for a, b in pairwise(edges)])
    taken = take_pairs(columns, columns.offsets, pairs, take_texts(columns.values, pairs))
    named = tuple(columns.names[one] for one in names)
    return replace(taken, names=named, keys=place[taken.keys])


def test_the_order_of_names_and_pairs_does_not_change_the_digest() -> None:
    found = logs()
    assert found.columns.attributes is not None
    for seed in range(20):
        attributes = shuffled(found.columns.attributes, seed)
        columns = replace(found.columns, attributes=attributes)
        check_columns(columns, len(columns))
        mixed = replace(found, columns=columns, resource=found.resource[::-1])
        assert content_digest(mixed) == content_digest(found)
        form = canonical(mixed)
        assert form.columns.attributes is not None
        assert list(form.columns.attributes.names) == sorted(attributes.names)


def test_the_order_of_metric_names_does_not_change_the_digest() -> None:
    body = METRIC_REQUEST.SerializeToString()
    (found,) = decode_otlp_metrics(body, PROTOBUF, received_ns=1)
    columns = found.columns
    assert isinstance(columns, MetricColumns)
    names, indexes = columns.name.names, columns.name.indexes
    reversed_names = NameColumn(names=names[::-1], indexes=(len(names) - 1 - indexes).astype("u4"))
    reverse = replace(columns, name=reversed_names)
    check_columns(reverse, len(reverse))
    assert content_digest(replace(found, columns=reverse)) == content_digest(found)


def test_the_time_of_receipt_does_not_change_the_digest_of_timed_records() -> None:
    assert logs(1).timed
    assert content_digest(logs(1)) == content_digest(logs(2))


def test_a_severity_of_zero_is_no_severity() -> None:
    found = logs()
    assert isinstance(found.columns, LogColumns)
    zero = np.zeros(len(found.columns), np.uint8)
    stated = replace(found, columns=replace(found.columns, severity=zero))
    missing = replace(found, columns=replace(found.columns, severity=None))
    assert content_digest(stated) == content_digest(missing)


def test_every_difference_changes_the_digest() -> None:
    found = logs()
    columns = found.columns
    assert isinstance(columns, LogColumns)
    assert columns.attributes is not None
    values = columns.attributes.values
    others = [
        replace(found, resource=()),
        replace(found, columns=replace(columns, ts=columns.ts + 1)),
        replace(found, columns=replace(columns, severity=None)),
        replace(
            found,
            columns=replace(columns, body=replace(columns.body, data=columns.body.data.swapcase())),
        ),
        replace(
            found,
            columns=replace(
                columns,
                attributes=replace(
                    columns.attributes, values=replace(values, data=values.data.swapcase())
                ),
            ),
        ),
    ]
    digests = {content_digest(one) for one in (found, *others)}
    assert len(digests) == len(others) + 1
