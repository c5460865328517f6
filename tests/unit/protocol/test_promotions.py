"""Which promotions are possible, and what two operators decide together."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_lake.tables import TABLES
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.manifests import encode_record
from sluice_protocol.promotions import (
    KEY_CHARS_MAX,
    PROMOTIONS_MAX,
    PromotedType,
    Promotion,
    column_of,
    decide_promotion,
    decode_promotion,
    is_promoted_name,
    parse_promoted,
    promotion_key,
)


def promotion(key: str = "http.status", column: str | None = None, **changes: Any) -> Promotion:
    given = {
        "kind": "logs",
        "source": "attributes",
        "key": key,
        "column": column or column_of("attributes", key),
        "type": PromotedType.INTEGER,
        "decided_by": "operator:alice",
        "decided_at_unix_ns": 1,
    }
    return Promotion(**(given | changes))


@pytest.mark.parametrize(
    ("key", "column"),
    [
        ("http.status", "attr_http_status"),
        ("userId", "attr_userid"),
        ("--a//b--", "attr_a_b"),
        ("7", "attr_7"),
        ("k8s.pod/name", "attr_k8s_pod_name"),
    ],
)
def test_a_column_is_named_after_its_attribute(key: str, column: str) -> None:
    assert column_of("attributes", key) == column


@pytest.mark.parametrize("key", ["ä", "...", "x" * 80])
def test_an_attribute_without_such_a_name_needs_one_from_the_operator(key: str) -> None:
    with pytest.raises(BadUsage, match="name the column after the type"):
        column_of("attributes", key)
    assert promotion(key, "attr_other").column == "attr_other"


def test_no_column_of_a_table_can_be_that_of_a_promotion() -> None:
    """So a later version may add any column that does not begin like a promoted one."""
    assert not any(is_promoted_name(one.name) for table in TABLES for one in table.columns)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "entries"}, "entries have no attributes"),
        ({"key": "", "column": "attr_x"}, "1 to 500"),
        ({"key": "k" * (KEY_CHARS_MAX + 1), "column": "attr_x"}, "1 to 500"),
        ({"column": "body"}, "is named attr_"),
        ({"column": "attr_"}, "is named attr_"),
        ({"column": "attr_A"}, "is named attr_"),
        ({"column": "attr_x;drop"}, "is named attr_"),
        ({"column": "attr_\uff11"}, "is named attr_"),
        ({"column": "res_x"}, "is named attr_"),
        ({"column": "attr_" + "x" * 60}, "at most 60 characters"),
    ],
)
def test_a_promotion_that_no_table_can_have_is_refused(
    changes: dict[str, Any], reason: str
) -> None:
    """As a request, and in a record that another program has written."""
    with pytest.raises(ValueError, match=reason):
        promotion(**changes)
    stored = msgspec.to_builtins(promotion()) | changes
    key = promotion_key(stored["kind"], stored["column"])
    with pytest.raises(InvalidRecord, match="stored record is not valid"):
        decode_promotion(key, msgspec.json.encode(stored))


def test_a_record_belongs_under_its_key() -> None:
    body = encode_record(promotion())
    assert decode_promotion(promotion_key("logs", "attr_http_status"), body) == promotion()
    for key in (promotion_key("metrics", "attr_http_status"), promotion_key("logs", "attr_x")):
        with pytest.raises(InvalidRecord, match="another key"):
            decode_promotion(key, body)


def test_the_same_decision_again_is_the_first_one() -> None:
    again = promotion(decided_by="operator:bob", decided_at_unix_ns=9)
    assert decide_promotion(again, [promotion()]) == promotion()


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (promotion(type=PromotedType.TEXT), "is promoted already"),
        (promotion(column="attr_status"), "is promoted already"),
        (promotion("http-status"), "another attribute has this column"),
    ],
)
def test_a_decision_that_contradicts_an_earlier_one_is_refused(
    wanted: Promotion, reason: str
) -> None:
    with pytest.raises(BadUsage, match=reason):
        decide_promotion(wanted, [promotion()])


def test_kinds_are_separate() -> None:
    wanted = promotion(kind="metrics", type=PromotedType.TEXT)
    assert decide_promotion(wanted, [promotion()]) is wanted


def test_a_kind_has_a_bounded_number_of_promotions() -> None:
    many = [promotion(f"k{number}") for number in range(PROMOTIONS_MAX)]
    with pytest.raises(BadUsage, match="at most 64"):
        decide_promotion(promotion(), many)
    assert decide_promotion(promotion("k3"), many) == many[3]
    assert decide_promotion(promotion(), many[1:]) == promotion()


@given(st.text(max_size=30))
def test_an_attribute_is_named_with_its_map(text: str) -> None:
    """A key may contain dots, and any other character."""
    assert parse_promoted(f"attributes.{text}") == (("attributes", text) if text else None)
    assert parse_promoted(text) is None or text.startswith(("attributes.", "resource."))
