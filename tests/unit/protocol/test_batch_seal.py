"""What is known of the time of a seal, by whose clock."""

import pytest
from support.builders import accepted_manifest
from ulid import ULID

from sluice_protocol.batch_seal import Sealer, seal_bounds, ulid_time_ns
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S

AT_S = 1_790_000_000
AGENT_BOOT = str(ULID.from_timestamp(AT_S - 60.0))
ATTEMPT = str(ULID.from_timestamp(AT_S - 1.0))


def manifest(agent: str, boot: str, attempt: str = ATTEMPT) -> AcceptedManifest:
    who = Identity(agent_id=agent, boot_id=boot, seq_start=0, seq_end=2)
    return accepted_manifest(
        who, digest_of(b"x"), at_ns=AT_S * NS_PER_S, span=(0, 1), collector_id="gw",
        attempt_id=attempt, principal="p",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("agent", "boot", "sealer", "after_s"),
    [
        pytest.param("host-1", AGENT_BOOT, Sealer.SENDER, AT_S - 60, id="agent"),
        pytest.param("host-1", "demo", Sealer.SENDER, None, id="a boot without a time"),
        pytest.param("host-1", "7" * 26, Sealer.SENDER, None, id="a time in the future"),
        pytest.param("door:p:ab", "a" * 32, Sealer.DOOR_REQUEST, None, id="one request"),
        pytest.param("door:p:gw", AGENT_BOOT, Sealer.DOOR_COMBINED, AT_S - 60, id="combined"),
    ],
)
def test_bounds_of_a_seal(agent: str, boot: str, sealer: Sealer, after_s: int | None) -> None:
    found = seal_bounds(manifest(agent, boot))
    assert found.sealer is sealer
    assert found.after_unix_ns == (None if after_s is None else after_s * NS_PER_S)
    assert found.before_unix_ns == (AT_S - 1) * NS_PER_S
    assert found.accepted_before_unix_ns == AT_S * NS_PER_S
    assert found.gateway == "gw"
    assert ("not recorded" in found.meaning) == (sealer is Sealer.SENDER)


@pytest.mark.parametrize("attempt", ["foreign", "7" * 26])
def test_an_attempt_without_a_possible_time_bounds_nothing(attempt: str) -> None:
    """The second one states the year 10889, which cannot be shown."""
    assert seal_bounds(manifest("host-1", "b1", attempt=attempt)).before_unix_ns is None


@pytest.mark.parametrize("text", ["", "b1", "x" * 26, "8" * 26, "é" * 26, "I" * 26])
def test_other_texts_have_no_time(text: str) -> None:
    assert ulid_time_ns(text) is None
