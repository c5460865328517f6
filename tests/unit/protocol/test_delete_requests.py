"""The decision that a command line and an HTTP client share: which delete a request leads to."""

import msgspec
import pytest
from ulid import ULID

from sluice_protocol.errors import BadUsage
from sluice_protocol.record_deletes import (
    REASON_CHARS_MAX,
    WHERE_CHARS_MAX,
    DeleteRecord,
    DeleteRequest,
    check_delete_id,
    check_new_id,
    decide_delete,
    is_same_request,
)
from sluice_protocol.units import NS_PER_S

NOW_NS = 1_790_000_000 * NS_PER_S
HOUR_NS = 3600 * NS_PER_S
DAY_NS = 24 * HOUR_NS
ID = str(ULID.from_timestamp(NOW_NS / NS_PER_S))
GOOD = DeleteRequest(where="agent = 'a'", older_than_days=2, reason="r")


def decide(request: DeleteRequest, now_ns: int = NOW_NS) -> DeleteRecord:
    return decide_delete(request, delete_id=ID, now_ns=now_ns, principal="operator:x")


def test_the_cut_off_is_the_clock_of_the_store_and_ages_count_back_from_it() -> None:
    record = decide(GOOD)
    assert record.accepted_until_unix_ns == NOW_NS
    assert record.to_unix_ns == NOW_NS - 2 * DAY_NS
    assert (record.agent_id, record.reason, record.principal) == ("a", "r", "operator:x")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"where": None, "older_than_days": None}, "at least one condition"),
        ({"where": "agent = a"}, "condition is not valid"),
        ({"where": "agent = '" + "a" * WHERE_CHARS_MAX + "'"}, "where must have at most"),
        ({"reason": "a" * (REASON_CHARS_MAX + 1)}, "reason must have at most"),
        ({"to": "2026-01-01T00:00:00Z"}, "a delete has one end"),
        ({"older_than_days": float("nan")}, "older_than_days must be 0 to"),
        ({"older_than_days": float("inf")}, "older_than_days must be 0 to"),
        ({"older_than_days": -1.0}, "older_than_days must be 0 to"),
        ({"older_than_days": 1e300}, "older_than_days must be 0 to"),
        ({"from_": "yesterday"}, "time must be RFC 3339"),
        ({"from_": "2027-01-01T00:00:00Z"}, "time range ends before it starts"),
        ({"kind": "entries", "where": "body contains 'x'"}, "entries have no body"),
    ],
)
def test_a_malformed_request_is_an_error_with_the_reason(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(BadUsage, match=reason):
        decide(msgspec.structs.replace(GOOD, **changes))


def test_an_unknown_field_of_a_body_is_refused() -> None:
    """Ignoring a condition would delete more than was requested."""
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"where":"agent = \'a\'","contain":"x"}', type=DeleteRequest)


def test_a_repeated_request_is_the_same_at_any_later_time() -> None:
    stored = decide(GOOD)
    assert is_same_request(GOOD, stored, "operator:x")
    for changes in ({"where": "agent = 'b'"}, {"reason": ""}, {"older_than_days": 3.0}):
        assert not is_same_request(msgspec.structs.replace(GOOD, **changes), stored, "operator:x")
    assert not is_same_request(GOOD, stored, "operator:y")


@pytest.mark.parametrize(
    "text",
    ["", ID[:-1], ID + "0", ID.lower(), "I" * 26, "8" + ID[1:], "../" + ID[3:]],
    ids=["empty", "short", "long", "lower-case", "letters", "overflow", "path"],
)
def test_an_id_that_is_no_ulid_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="delete_id must be a ULID"):
        check_delete_id(text)


@pytest.mark.parametrize(
    ("ahead_ns", "good"),
    [
        (0, True),
        (HOUR_NS - NS_PER_S, True),
        (HOUR_NS + NS_PER_S, False),
        (-DAY_NS + NS_PER_S, True),
        (-DAY_NS - NS_PER_S, False),
    ],
)
def test_the_time_of_a_new_id_is_near_the_clock_of_the_store(ahead_ns: int, good: bool) -> None:
    delete_id = str(ULID.from_timestamp((NOW_NS + ahead_ns) / NS_PER_S))
    if good:
        check_new_id(delete_id, NOW_NS)
        return
    with pytest.raises(BadUsage, match="too old or in the future"):
        check_new_id(delete_id, NOW_NS)
