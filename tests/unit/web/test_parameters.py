from collections.abc import Callable

import pytest
from multidict import MultiDict

from sluice_protocol.errors import BadUsage
from sluice_web.parameters import (
    AgentParameter,
    ChoiceParameter,
    FlagParameter,
    IntegerParameter,
    TextParameter,
    check_names,
    read_cursor,
)

LIMIT = IntegerParameter(name="limit", default=20, maximum=100)
FLAG = FlagParameter(name="regex")
KIND = ChoiceParameter(name="kind", choices=("logs", "metrics"), default="logs")
AGENT = TextParameter(name="agent", repeated=True)
ONE_AGENT = AgentParameter()


def test_a_number_is_read_within_its_bounds() -> None:
    assert LIMIT.read({}) == 20
    assert [LIMIT.read({"limit": text}) for text in ("1", "007", "100")] == [1, 7, 100]


@pytest.mark.parametrize("text", ["0", "101", "-1", "x", "", "1.0", "٣", "1" * 30, "0" * 30 + "1"])
def test_a_number_out_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="limit must be a number from 1 to 100"):
        LIMIT.read({"limit": text})


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("", True), ("false", False), ("0", False)]
)
def test_a_flag_is_true_or_false(text: str, value: bool) -> None:
    assert FLAG.read({"regex": text}) is value
    assert FLAG.read({}) is False


def test_a_choice_has_a_default() -> None:
    assert KIND.read({}) == "logs"
    assert KIND.read({"kind": "metrics"}) == "metrics"


@pytest.mark.parametrize(
    ("read", "name"), [(FLAG.read, "regex"), (KIND.read, "kind"), (LIMIT.read, "limit")]
)
def test_an_error_names_the_parameter_and_cuts_its_text(
    read: Callable[[dict[str, str]], object], name: str
) -> None:
    with pytest.raises(BadUsage, match=f"^{name} must be") as caught:
        read({name: "maybe" * 1000})
    assert len(str(caught.value)) < 200


def test_unknown_and_repeated_names_are_refused() -> None:
    known = (LIMIT, FLAG, AGENT)
    check_names(MultiDict([("agent", "a"), ("agent", "b"), ("limit", "1")]), known)
    with pytest.raises(BadUsage, match="unknown parameter, parameter=`colour`"):
        check_names(MultiDict(colour="red"), known)
    with pytest.raises(BadUsage, match="parameter is repeated, parameter=`limit`"):
        check_names(MultiDict([("limit", "1"), ("limit", "2")]), known)


def test_a_cursor_belongs_to_its_list() -> None:
    assert read_cursor({}, "audit/") == ""
    assert read_cursor({"after": "audit/7"}, "audit/") == "audit/7"
    with pytest.raises(BadUsage, match="`next` of an earlier page"):
        read_cursor({"after": "gc/7"}, "audit/")


def test_the_schema_of_a_parameter_contains_its_bounds() -> None:
    assert LIMIT.schema == {"type": "integer", "default": 20, "minimum": 1, "maximum": 100}
    assert FLAG.schema == {"type": "boolean", "default": False}
    assert KIND.schema == {"enum": ["logs", "metrics"], "default": "logs"}
    assert AGENT.schema == {"type": "array", "items": {"type": "string", "maxLength": 1000}}
    assert ONE_AGENT.schema == {"type": "string", "minLength": 1, "maxLength": 120}


def test_a_text_has_a_maximum_length() -> None:
    assert AGENT.read({"agent": "a" * 1000}) == "a" * 1000
    with pytest.raises(BadUsage, match="agent must have at most 1000 characters"):
        AGENT.read({"agent": "a" * 1001})


def test_an_agent_id_follows_the_rules_of_identities() -> None:
    assert ONE_AGENT.read({}) is None
    assert ONE_AGENT.read({"agent": "host-1"}) == "host-1"
    for text in ("", "a" * 121, "\u00fc" * 61, "a\x00", "\udcff"):
        with pytest.raises(BadUsage, match="agent=`") as caught:
            ONE_AGENT.read({"agent": text})
        assert len(str(caught.value)) < 200
