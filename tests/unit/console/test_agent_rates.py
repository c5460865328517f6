"""Rates of agents and boots: exact over what was read, and honest about the rest."""

import tracemalloc

import pytest
from support.builders import accepted_manifest, make_identity

from sluice_console import agents
from sluice_console.agents import HALF_S, AcceptedRate, AgentRates, RateWindow, report_of_agents
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S, Digest, UnixNs
from sluice_reconciler.batch_lists import BatchSpan
from sluice_reconciler.completeness import BootReport

START_S = 1_000_000
BOOT_BYTES_MAX = 940
"""Memory of the rates of one boot."""
INDEXED = (START_S + 10_000_000) * NS_PER_S


def batch(at_s: float, agent: str = "a", boot: str = "b1", size: int = 100) -> AcceptedManifest:
    return accepted_manifest(
        make_identity(0, count=5, agent=agent, boot=boot),
        Digest("0" * 64),
        frame_bytes=size,
        at_ns=UnixNs(int((START_S + at_s) * NS_PER_S)),
    )


def span(
    since_s: float,
    before_s: float,
    *batches: AcceptedManifest,
    read_from_s: float | None = None,
    unreadable: tuple[str, ...] = (),
) -> BatchSpan:
    def ns(seconds: float) -> int:
        return int((START_S + seconds) * NS_PER_S)

    return BatchSpan(
        batches=batches,
        unreadable=unreadable,
        since_unix_ns=ns(since_s),
        before_unix_ns=ns(before_s),
        complete_since_unix_ns=ns(since_s if read_from_s is None else read_from_s),
    )


def rate(batches: int, read_s: float, size: int = 100) -> AcceptedRate:
    return AcceptedRate(
        batches_per_s=batches / read_s,
        records_per_s=5 * batches / read_s,
        bytes_per_s=size * batches / read_s,
    )


def test_before_the_first_sample_no_rate_is_known() -> None:
    rates = AgentRates()
    assert rates.of_agent("a") is None
    assert (rates.window().since_unix_ns, rates.window().problem) == (
        None,
        "no sample was taken yet",
    )


def test_rates_are_per_second_of_the_window_by_agent_and_by_boot() -> None:
    rates = AgentRates()
    rates.add(span(0, 10, batch(1), batch(2), batch(3, boot="b2"), batch(4, "other")), INDEXED)
    rates.add(span(10, 20, batch(11)), INDEXED)
    assert rates.of_agent("a") == rate(4, 20)
    assert rates.of_boot("a", "b1") == rate(3, 20)
    assert rates.of_boot("a", "b2") == rate(1, 20)
    assert rates.of_agent("silent") == rate(0, 1)
    window = rates.window()
    assert (window.window_s, window.read_s, window.problem) == (20, 20, "")
    assert window.since_unix_ns == START_S * NS_PER_S


def test_a_boot_that_is_silent_for_two_halves_is_forgotten() -> None:
    rates = AgentRates()
    rates.add(span(0, HALF_S, batch(1), batch(1, "often")), INDEXED)
    rates.add(span(HALF_S, 2 * HALF_S, batch(HALF_S, "often")), INDEXED)
    assert rates.of_agent("a") == rate(1, 2 * HALF_S)
    assert rates.of_agent("often") == rate(2, 2 * HALF_S)
    rates.add(span(2 * HALF_S, 3 * HALF_S), INDEXED)
    assert rates.of_agent("a") == rate(0, 1)
    assert rates.of_agent("often") == rate(1, 2 * HALF_S)
    assert set(rates._agents) == {"often"}
    assert set(rates._boots) == {("often", "b1")}
    assert rates.window().window_s == 2 * HALF_S
    assert rates.window().since_unix_ns == int((START_S + HALF_S) * NS_PER_S)


def test_what_was_not_read_counts_neither_as_time_nor_as_batches() -> None:
    """The newest 4 of 10 seconds were read; older batches of the same objects do not count."""
    rates = AgentRates()
    rates.add(span(0, 10, batch(9), batch(7), batch(5), read_from_s=6), INDEXED)
    assert rates.of_agent("a") == rate(2, 4)
    window = rates.window()
    assert (window.window_s, window.read_s, window.problem) == (10, 4, "")
    rates.add(span(15, 20, batch(16)), INDEXED)  # five seconds without a sample
    assert rates.of_agent("a") == rate(3, 9)
    assert (rates.window().window_s, rates.window().read_s) == (20, 9)


@pytest.mark.parametrize("indexed_s", [None, 9.9])
def test_an_index_that_is_behind_makes_the_window_incomplete(indexed_s: float | None) -> None:
    rates = AgentRates()
    rates.add(
        span(0, 10, batch(1)), None if indexed_s is None else int((START_S + indexed_s) * NS_PER_S)
    )
    assert "rates may be too low" in rates.window().problem
    rates.add(span(10, HALF_S), INDEXED)
    assert "rates may be too low" in rates.window().problem
    rates.add(span(HALF_S, 2 * HALF_S), INDEXED)
    rates.add(span(2 * HALF_S, 3 * HALF_S), INDEXED)
    assert rates.window().problem == ""


def test_objects_that_cannot_be_read_are_named() -> None:
    rates = AgentRates()
    rates.add(span(0, 10, batch(1), unreadable=("x", "y")), INDEXED)
    assert "2 objects of the index cannot be read" in rates.window().problem


def test_more_boots_than_are_counted_have_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "BOOTS_MAX", 2)
    rates = AgentRates()
    rates.add(span(0, 10, *(batch(1, agent) for agent in "abcab")), INDEXED)
    assert rates.of_agent("a") == rate(2, 10)
    assert rates.of_agent("c") is None
    assert "more than 2 boots" in rates.window().problem
    assert len(rates._agents) == len(rates._boots) == 2


def test_a_clock_that_steps_back_gives_no_negative_time() -> None:
    rates = AgentRates()
    rates.add(span(100, 90), INDEXED)
    assert rates.of_agent("a") is None
    assert rates.window().read_s == 0


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_pages_of_many_agents_read_the_rates_of_their_rows_only(count: int) -> None:
    agents = [f"agent-{n:06d}" for n in range(count)]
    boots = [
        BootReport(
            agent_id=agent,
            boot_id="b1",
            batches=1,
            ranges=((0, 4),),
            overlaps=0,
            gaps=(),
            last_accepted_s=1.0,
            high_water=4,
        )
        for agent in agents
    ]
    report = report_of_agents(boots, as_of="", source="store")
    tracemalloc.start()
    rates = AgentRates()
    for half in (0, 1):
        begin_s = half * HALF_S
        rates.add(
            span(
                begin_s,
                begin_s + HALF_S,
                *(batch(begin_s + 1, agent, size=100_000) for agent in agents),
            ),
            INDEXED,
        )
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    print(f"{count} boots: {kept / count:.0f} bytes each")
    assert kept < BOOT_BYTES_MAX * count
    lookups: list[str] = []
    known = rates.of_agent

    def counted(agent: str) -> AcceptedRate | None:
        lookups.append(agent)
        return known(agent)

    class Counting(AgentRates):
        of_agent = staticmethod(counted)

        def window(self) -> RateWindow:
            return rates.window()

    page = report.page(Counting(), order="name", text="", after=count - 100, limit=50)
    assert lookups == agents[count - 100 : count - 50]
    assert page.agents[0].rate == rate(2, 2 * HALF_S, 100_000)
    assert page.window.read_s == 2 * HALF_S
    detail = report.detail("agent-000007", rates)
    assert detail.boot_rates == (detail.rate,)
