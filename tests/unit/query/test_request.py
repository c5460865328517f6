import pytest
from support.query_lake import DAY0_NS, make_query

from sluice_protocol.errors import BadUsage
from sluice_query.request import Aggregate, Query, Series, check_query


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"to_ns": DAY0_NS}, "ends before it starts: swap from and to"),
        ({"to_ns": DAY0_NS - 1}, "ends before it starts"),
        ({"limit": 0}, "limit must be 1"),
        ({"limit": 100_001}, "limit must be 1"),
        ({"text": ""}, "q must be 1"),
        ({"text": "x" * 1_001}, "q must be 1"),
        ({"text": "\ud800"}, "q is not valid UTF-8"),
        ({"regex": True}, "regex needs a text: add q"),
        ({"ignore_case": True}, "ignore_case needs a text: add q"),
        ({"text": "x", "kind": "entries"}, "entries are opaque"),
        ({"series": Series(metric="m", step_ns=1)}, "series is computed from metrics"),
        ({"series": Series(metric="m", step_ns=1), "kind": "metrics"}, "step is too short"),
        (
            {"series": Series(metric="m", step_ns=10**15), "kind": "metrics", "stats_only": True},
            "a series has no counts",
        ),
    ],
)
def test_a_query_that_cannot_be_answered_is_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BadUsage, match=message) as refused:
        check_query(make_query(**changes))
    assert "\n" not in str(refused.value)


def test_a_query_within_all_bounds_is_returned_unchanged() -> None:
    assert check_query(make_query()) == make_query()
    series = Series(metric="m", step_ns=10**12, aggregate=Aggregate.LAST)
    assert isinstance(check_query(make_query(kind="metrics", series=series)), Query)


def test_errors_use_the_names_of_the_caller() -> None:
    def flag(name: str) -> str:
        return f"--{name}"

    with pytest.raises(BadUsage, match="swap --from and --to"):
        check_query(make_query(to_ns=DAY0_NS), flag)
    with pytest.raises(BadUsage, match="--regex needs a text: add --q"):
        check_query(make_query(regex=True), flag)
