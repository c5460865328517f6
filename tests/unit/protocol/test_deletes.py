"""Delete requests: their conditions, their records, and what a reader must reject."""

import msgspec
import pytest

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import (
    DeleteRecord,
    Where,
    decode_delete,
    delete_key,
    parse_where,
    retention_cut_ns,
    rollup_deletes,
)

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
    """A decoded delete equals the encoded one."""
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
    """A delete needs a condition that its records can meet."""
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
