"""Clients without a valid key are logged at most once a minute, and listed for some minutes."""

from structlog.testing import capture_logs
from support.gc_world import MovedClock

from sluice_console.attention import OverviewFacts, list_attention
from sluice_console.gateway_health import GatewayHealth
from sluice_web.refused_clients import ClientRefusal, RefusedClients, RefusedDoor


def test_a_line_a_minute_states_the_number_since_the_last_one() -> None:
    clock = MovedClock()
    refused = RefusedClients(clock)
    with capture_logs() as logs:
        for waited_s in (0, 1, 58, 1, 1, 58):
            clock.pass_s(waited_s)
            refused.add("forward", ClientRefusal.NO_KEY, "10.0.0.1")
        refused.add("otlp", ClientRefusal.NO_KEY, None)
    assert [(one["door"], one["refusals"], one["log_level"]) for one in logs] == [
        ("forward", 1, "warning"),
        ("forward", 3, "warning"),
        ("otlp", 1, "warning"),
    ]
    assert {one["event"] for one in logs} == {"door_clients_refused"}


def test_a_door_is_listed_until_some_minutes_after_its_last_refusal() -> None:
    clock = MovedClock()
    refused = RefusedClients(clock)
    assert refused.recent() == ()
    refused.add("otlp", ClientRefusal.NO_KEY, "10.0.0.1")
    clock.pass_s(240)
    refused.add("otlp", ClientRefusal.WRONG_KEY, "10.0.0.2")
    clock.pass_s(10)
    (found,) = refused.recent()
    assert (found.door, found.refusals, found.last_s) == ("otlp", 2, 10.0)
    assert (found.reason, found.peer) == ("its key is not valid", "10.0.0.2")
    clock.pass_s(280)
    assert [one.refusals for one in refused.recent()] == [1]
    clock.pass_s(71)
    assert refused.recent() == ()


def _refused(door: str, refusals: int, last_s: float, peer: str) -> RefusedDoor:
    return RefusedDoor(
        door=door, refusals=refusals, reason="it sent no key", peer=peer, last_s=last_s
    )


def test_a_door_of_several_gateways_is_one_notice() -> None:
    gateways = (
        GatewayHealth(url="http://a", refused_doors=(_refused("forward", 2, 60.0, "10.0.0.1"),)),
        GatewayHealth(
            url="http://b",
            refused_doors=(
                _refused("forward", 3, 5.0, "10.0.0.2"),
                _refused("uploads", 1, 7.0, ""),
            ),
        ),
    )
    forward, uploads = list_attention(OverviewFacts(gateways=gateways))
    assert (forward.severity, uploads.severity) == ("notice", "notice")
    assert "door=forward" in forward.title
    assert "5 refusals in the last 5 min, the last 5 s ago from 10.0.0.2" in forward.detail
    assert "url=http://b" in forward.detail
    assert uploads.title == "Agents without a valid key are refused"


def test_a_notice_is_listed_after_errors_and_warnings() -> None:
    one = GatewayHealth(
        url="http://a",
        refused_doors=(_refused("otlp", 1, 0.0, ""),),
        principals_stale=True,
        journal_age_s=31.0,
    )
    found = list_attention(OverviewFacts(gateways=(one,)))
    assert [item.severity for item in found] == ["error", "warning", "notice"]
