"""Reports of agents, activity and history, in bounded memory."""

from support.builders import accepted_manifest, make_identity

from sluice_console.agents import AgentRates, range_bars, report_of_agents
from sluice_console.overview import (
    ROWS_MAX,
    SAMPLES_MAX,
    OverviewNumbers,
    SampleHistory,
    sum_activity,
)
from sluice_protocol.units import NS_PER_S, Digest
from sluice_reconciler.completeness import BootReport, SequenceGap


def boot(agent: str, *gaps: SequenceGap, last_s: float = 1.0, name: str = "b") -> BootReport:
    return BootReport(
        agent_id=agent,
        boot_id=name,
        batches=2,
        ranges=((0, 4), (10, 19)) if gaps else ((0, 19),),
        overlaps=0,
        gaps=gaps,
        last_accepted_s=last_s,
        high_water=19,
        oldest_gap_s=max((gap.age_s for gap in gaps), default=0.0),
    )


RATES = AgentRates()
GAP = SequenceGap(seq_start=5, seq_end=9, age_s=50.0)
YOUNG_TAIL = SequenceGap(seq_start=20, seq_end=29, age_s=5.0, tail=True)
OLD_TAIL = SequenceGap(seq_start=20, seq_end=29, age_s=601.0, tail=True)


def test_a_young_gap_at_the_end_is_in_transit_and_an_old_one_is_a_gap() -> None:
    report = report_of_agents(
        [boot("young", YOUNG_TAIL), boot("old", OLD_TAIL), boot("mixed", GAP, YOUNG_TAIL)],
        as_of="",
        source="store",
    )
    assert {row.agent_id: row.in_transit for row in report.rows} == {
        "young": True,
        "old": False,
        "mixed": False,
    }
    assert report.with_gaps == 2
    assert report.oldest_gap_s == 601.0


def test_orders_and_pages_of_20_000_agents() -> None:
    boots = [boot(f"agent-{n:06d}", *([GAP] if n == 777 else []), last_s=n) for n in range(20_000)]
    report = report_of_agents(boots, as_of="", source="store")
    first = report.page(RATES, order="gaps", text="", after=0, limit=100)
    assert first.agents[0].agent_id == "agent-000777"
    assert (first.total, first.next) == (20_000, "100")
    last = report.page(RATES, order="name", text="", after=19_950, limit=100)
    assert len(last.agents) == 50
    assert last.next is None
    assert report.page(RATES, order="seen", text="0999", after=0, limit=10).total == 12
    assert report.detail("agent-000777", RATES) is not None
    assert report.detail("nothing", RATES) is None


def test_bars_are_shares_of_the_sequence_numbers() -> None:
    assert range_bars(boot("a", GAP)) == ((0.0, 0.25), (0.5, 1.0))


def test_activity_lists_the_largest_agents_and_sums_the_others() -> None:
    batches = [
        accepted_manifest(make_identity(0, agent=f"a{n:03d}"), Digest("0" * 64), frame_bytes=n)
        for n in range(50)
    ]
    found = sum_activity(batches, 10.0, at_least=False)
    assert found.rows[0].agent_id == "a049"
    assert len(found.rows) == ROWS_MAX + 1
    assert found.rows[-1].agent_id == ""
    assert found.batches_per_s == 5.0
    assert sum(row.bytes_per_s for row in found.rows) == found.bytes_per_s


def test_the_history_keeps_an_hour_and_a_bounded_number_of_samples() -> None:
    history = SampleHistory()
    for second in range(0, 10_000, 10):
        history.add(second * NS_PER_S, OverviewNumbers(held=float(second)))
    view = history.view()
    assert view.at_unix_ns[0] >= (10_000 - 10 - 3_600) * NS_PER_S
    assert len(view.series["held"]) == len(view.at_unix_ns) == 361
    for number in range(2 * SAMPLES_MAX):
        history.add(20_000 * NS_PER_S + number, OverviewNumbers())
    assert len(history.view().at_unix_ns) == SAMPLES_MAX
