"""The arithmetic of the benchmark `peers`."""

import pytest
from benchmarks.peer_figures import (
    BARS,
    BEGIN,
    BEGIN_FRESH,
    END,
    SIZES,
    Bar,
    PeerSample,
    judge,
    ratios_of,
    row,
    tables,
    updated_page,
)

from sluice_protocol.errors import BadUsage


def sample(
    *,
    cpu_s: float = 1.0,
    wall_s: float = 2.0,
    units: int = 100,
    latencies_us: tuple[int, ...] = (1000, 3000, 2000),
    store_cpu_s: float = 0.0,
) -> PeerSample:
    return PeerSample(
        wall_s=wall_s, cpu_s=cpu_s, store_cpu_s=store_cpu_s, units=units, latencies_us=latencies_us
    )


BAR = Bar(size="1 KiB", subject="a", control="b", figure="CPU", limit=1.0)


def test_figures_of_a_sample() -> None:
    one = sample(cpu_s=3.0, wall_s=4.0, units=200)
    assert one.figure("CPU") == pytest.approx(0.015)
    assert one.figure("p50") == 2000
    assert one.figure("throughput") == pytest.approx(50)


def test_processor_time_is_at_least_one_tick() -> None:
    """A server that used less than a tick would otherwise be infinitely good."""
    assert sample(cpu_s=0.0, units=10).figure("CPU") == pytest.approx(0.001)


def test_ratios_are_formed_within_rounds() -> None:
    """The second round is slow for both: only the ratio within the round is significant."""
    subject = [sample(cpu_s=2.0), sample(cpu_s=20.0), sample(cpu_s=3.0)]
    control = [sample(cpu_s=1.0), sample(cpu_s=10.0), sample(cpu_s=1.0)]
    assert ratios_of(subject, control, "CPU") == (2.0, 2.0, 3.0)


def test_rounds_of_different_number_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratios_of([sample()], [sample(), sample()], "CPU")


@pytest.mark.parametrize(
    ("cpu_s", "at_least", "is_missed"),
    [(1.0, False, False), (1.1, False, True), (1.0, True, False), (0.9, True, True)],
)
def test_a_bar_is_met_at_its_limit(cpu_s: float, at_least: bool, is_missed: bool) -> None:
    bar = Bar(size="1 KiB", subject="a", control="b", figure="CPU", limit=1.0, at_least=at_least)
    rounds = {("1 KiB", "a"): [sample(cpu_s=cpu_s)], ("1 KiB", "b"): [sample(cpu_s=1.0)]}
    (verdict,) = judge([bar], rounds)
    assert verdict.is_missed is is_missed
    assert verdict.line.endswith("| missed |" if is_missed else "| met |")


@pytest.mark.parametrize(("middle", "is_missed"), [(0.9, False), (1.1, True)])
def test_the_median_decides(middle: float, is_missed: bool) -> None:
    """Minimum and maximum are on both sides of the limit."""
    rounds = {
        ("1 KiB", "a"): [sample(cpu_s=value) for value in (0.5, middle, 5.0)],
        ("1 KiB", "b"): [sample(cpu_s=1.0)] * 3,
    }
    (verdict,) = judge([BAR], rounds)
    assert verdict.is_missed is is_missed
    assert f"0.50 · {middle:.2f} · 5.00" in verdict.line


@pytest.mark.parametrize("missing", ["a", "b"])
def test_a_server_that_did_not_run_is_reported(missing: str) -> None:
    rounds = {("1 KiB", who): [sample()] for who in "ab" if who != missing}
    (verdict,) = judge([BAR], rounds)
    assert verdict.ratios is None
    assert not verdict.is_missed
    assert "not measured" in verdict.line


def test_a_size_is_compared_with_the_same_size() -> None:
    (verdict,) = judge([BAR], {("1 KiB", "a"): [sample()], ("1 MiB", "b"): [sample()]})
    assert verdict.ratios is None


def test_a_row_has_medians_over_the_rounds() -> None:
    samples = [
        sample(cpu_s=cpu, store_cpu_s=0.5, latencies_us=(1000, 2000, 3000))
        for cpu in (0.1, 0.3, 0.2)
    ]
    assert row("1 KiB", "a", samples) == (
        "| 1 KiB | a | 1.000 · 2.000 · 3.000 | 5.00 | 2.0 | 4.0 | 50 |"
    )


def test_a_row_without_requests_or_store() -> None:
    assert row("file", "a", [sample(latencies_us=())]).endswith("| - | - | - | 50 |")


def test_each_bar_of_the_broker_has_every_size() -> None:
    for figure in ("CPU", "p50", "throughput"):
        bars = [bar for bar in BARS if (bar.subject, bar.figure) == ("sluice, directory", figure)]
        assert [bar.size for bar in bars] == list(SIZES)
        assert all(bar.at_least == (figure == "throughput") for bar in bars)


def test_a_section_of_the_page_is_replaced() -> None:
    other = f"{BEGIN_FRESH}\n\nother\n\n{END}"
    page = f"# Title\n\n{other}\n\n{BEGIN}\n\nold\n\n{END}\n\nend\n"
    updated = updated_page(page, BEGIN, ["new", "lines"])
    assert updated == f"# Title\n\n{other}\n\n{BEGIN}\n\nnew\nlines\n\n{END}\n\nend\n"
    assert updated_page(updated, BEGIN, ["new", "lines"]) == updated


@pytest.mark.parametrize("page", ["text", f"{BEGIN} text", f"text {END}"])
def test_a_page_without_both_marks_is_refused(page: str) -> None:
    with pytest.raises(BadUsage, match="it has no marks"):
        updated_page(page, BEGIN, [])


def test_the_tables_are_whole() -> None:
    rounds = {("1 KiB", "a"): [sample()], ("1 KiB", "b"): [sample()]}
    lines = tables(rounds, judge([BAR], rounds))
    assert [line.count("|") for line in lines] == [8, 8, 8, 8, 0, 6, 6, 6]
