"""The identity of requests of clients that know no sequence numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_protocol.errors import BadUsage
from sluice_protocol.identity import (
    RequestIdentity,
    is_door_agent,
    is_single_request,
    request_identity,
)
from sluice_protocol.keys import accepted_key


def derive(
    principal: str = "shop",
    door: str = "otlp",
    kind: str = "logs",
    source: str = "content",
    value: bytes = b"v",
) -> RequestIdentity:
    return request_identity(principal=principal, door=door, kind=kind, source=source, value=value)


def test_form_is_pinned() -> None:
    """Gateways of all versions derive the same identity, or an upgrade doubles what is retried."""
    batch = derive().batch(0, 3)
    assert batch.agent_id == "door:shop:3c"
    assert batch.boot_id == "3c5c8283c9114500cd037220f294c137"
    assert (batch.seq_start, batch.seq_end) == (0, 2)


def test_each_part_matters() -> None:
    variants = [
        derive(),
        derive(principal="shop2"),
        derive(door="json"),
        derive(kind="metrics"),
        derive(source="key"),
        derive(value=b"w"),
    ]
    assert len({one.digest for one in variants}) == len(variants)


@given(st.tuples(st.binary(max_size=8), st.binary(max_size=8)))
def test_parts_cannot_run_into_each_other(values: tuple[bytes, bytes]) -> None:
    """A byte that moves from one part to the next is another identity."""
    first, second = values
    moved = derive(principal="a" + "b", value=first + second)
    other = derive(principal="a", value=b"b" + first + second)
    assert moved.digest != other.digest


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=28))
def test_identity_is_a_valid_batch(principal: str) -> None:
    batch = derive(principal=principal).batch(5, 2)
    assert batch.agent_id.startswith(f"door:{principal}:")
    assert accepted_key(batch)
    assert is_single_request(batch.agent_id, batch.boot_id)


def test_long_principal_is_refused() -> None:
    assert derive(principal="x" * 112).batch(0, 1)
    with pytest.raises(BadUsage, match="at most 112 bytes"):
        derive(principal="x" * 113)


@pytest.mark.parametrize(
    ("agent_id", "boot_id", "single"),
    [
        ("door:a:00", "0" * 32, True),
        ("door:a:00", "01J00000000000000000000000", False),
        ("host-1", "0" * 32, False),
        ("door:a:00", "0" * 31 + "G", False),
    ],
)
def test_single_requests(agent_id: str, boot_id: str, single: bool) -> None:
    assert is_single_request(agent_id, boot_id) is single
    assert is_door_agent(agent_id) is agent_id.startswith("door:")
