"""Delete requests: which delete one leads to, its record, and what a reader must reject."""

import msgspec
import pytest
from ulid import ULID

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import (
    REASON_CHARS_MAX,
    WHERE_CHARS_MAX,
    DeleteRecord,
    DeleteRequest,
    Where,
    check_delete_id,
    check_new_id,
    decide_delete,
    decode_delete,
    delete_key,
    is_same_request,
    parse_where,
    retention_cut_ns,
    rollup_deletes,
)
from sluice_protocol.units import NS_PER_S

ID = "01K5N7W3M0000000000000000C"


def _record(**changes: object) -> DeleteRecord:
    good: dict[str, object] = {
        "delete_id": ID,
        "kind": "logs",
        "accepted_until_unix_ns": 5,
        "agent_id": "a",
    }
    return DeleteRecord(**(good | changes))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("agent = 'a'", Where(agent_id="a")),
        ("agent='it''s'", Where(agent_id="it's")),
        ("body contains 'x and y'", Where(contains="x and y")),
        (
            "attributes['k'] = 'v' AND attributes['l']='' and agent = 'a'",
            Where(agent_id="a", attributes=(("k", "v"), ("l", ""))),
        ),
    ],
)
def test_conditions_are_parsed(text: str, where: Where) -> None:
    """The four conditions are parsed, joined by `and`, with quotes doubled inside."""
    assert parse_where(text, "logs") == where


@pytest.mark.parametrize(
    "text",
    [
        "",
        "agent",
        "agent = a",
        "agent = 'a' and ",
        "agent = 'a' or agent = 'b'",
        "agent = 'a' and agent = 'b'",
        "attributes['k']='v' and attributes['k']='w'",
        "agent = 'a' body contains 'b'",
        "1 = 1",
        "agent = 'a'; drop",
    ],
)
def test_other_conditions_are_rejected(text: str) -> None:
    """A condition that is not understood is an error and hides nothing."""
    with pytest.raises(BadUsage):
        parse_where(text, "logs")


def test_each_kind_has_its_own_conditions() -> None:
    """The name of a metric is never taken for the body of a log, nor the reverse."""
    assert parse_where("name = 'cpu.load'", "metrics") == Where(contains="cpu.load")
    assert parse_where("agent = 'a'", "entries") == Where(agent_id="a")
    for text, kind in (
        ("name = 'x'", "logs"),
        ("body contains 'x'", "metrics"),
        ("body contains 'x'", "entries"),
    ):
        with pytest.raises(BadUsage, match=f"{kind} have no"):
            parse_where(text, kind)


def test_a_delete_round_trips() -> None:
    record = _record(attributes={"k": "v"}, from_unix_ns=1, to_unix_ns=2)
    assert decode_delete(delete_key(ID), encode_record(record)) == record


@pytest.mark.parametrize(
    "changes",
    [
        {"agent_id": None},
        {"agent_id": None, "contains": ""},
        {"from_unix_ns": 2, "to_unix_ns": 2},
        {"kind": "entries", "contains": "x"},
        {"kind": "entries", "attributes": {"k": "v"}},
    ],
)
def test_deletes_without_a_possible_condition_are_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"delete|range|opaque"):
        _record(**changes)


def test_unknown_parts_of_a_delete_are_rejected() -> None:
    """An unknown condition, schema, key or body raises an error and never widens the delete."""
    good = msgspec.json.decode(encode_record(_record()))
    for key, body in (
        (delete_key(ID), msgspec.json.encode(good | {"severity_below": 3})),
        (delete_key(ID), msgspec.json.encode(good | {"schema": "sluice.delete.v2"})),
        (delete_key(ID), msgspec.json.encode(good | {"agent_id": None})),
        (delete_key(ID), b"{"),
        (delete_key("0" * 26), msgspec.json.encode(good)),
        ("deletes/v1/x.json", msgspec.json.encode(good | {"delete_id": "x"})),
    ):
        with pytest.raises(InvalidRecord):
            decode_delete(key, body)


def test_only_retention_of_metrics_removes_the_points_of_rollups() -> None:
    """After retention of logs, an hour of metrics can still be aggregated again."""
    everything: dict[str, object] = {"agent_id": None}
    logs = _record(to_unix_ns=8, **everything)
    metrics = _record(kind="metrics", to_unix_ns=5, **everything)
    agent = _record(kind="metrics", to_unix_ns=7)
    assert retention_cut_ns([logs, agent]) is None
    assert retention_cut_ns([logs, metrics, agent]) == 5
    assert rollup_deletes([logs, metrics, agent]) == [agent]


NOW_NS = 1_790_000_000 * NS_PER_S
HOUR_NS = 3600 * NS_PER_S
DAY_NS = 24 * HOUR_NS
NEW_ID = str(ULID.from_timestamp(NOW_NS / NS_PER_S))
GOOD = DeleteRequest(where="agent = 'a'", older_than_days=2, reason="r")


def decide(request: DeleteRequest, now_ns: int = NOW_NS) -> DeleteRecord:
    return decide_delete(request, delete_id=NEW_ID, now_ns=now_ns, principal="operator:x")


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
    ["", NEW_ID[:-1], NEW_ID + "0", NEW_ID.lower(), "I" * 26, "8" + NEW_ID[1:], "../" + NEW_ID[3:]],
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
