"""Arithmetic of the benchmark `peers`: figures of samples, ratios within rounds, and bars."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from deploy.page_sections import split_section

TICK_S: Final = 0.01
"""The kernel counts processor time in steps of this; a sample is never below it."""

BEGIN: Final = "<!-- written by `make bench-peers WRITE=1` -->"
BEGIN_FRESH: Final = "<!-- written by `make bench-peers FRESH=1 WRITE=1` -->"
END: Final = "<!-- end -->"

Figure = Literal["CPU", "p50", "throughput"]
Rounds = Mapping[tuple[str, str], Sequence["PeerSample"]]
"""The samples of each round, by size and subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSample:
    """The load of one subject in one round; units are acknowledged batches.

    The store's processor time is that of the object store behind the server, 0 without a store. A
    request, of which `latencies_us` are the times, may contain several batches.
    """

    wall_s: float
    cpu_s: float
    store_cpu_s: float
    units: int
    latencies_us: tuple[int, ...]

    def figure(self, name: Figure) -> float:
        """Return a figure: seconds per batch, microseconds, or batches per second."""
        match name:
            case "CPU":
                return max(TICK_S, self.cpu_s) / self.units
            case "p50":
                return statistics.median(self.latencies_us)
            case "throughput":
                return self.units / self.wall_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A limit for the ratio of a subject to a control.

    The median over the rounds has to keep the limit, which is a minimum with `at_least`.
    """

    size: str
    subject: str
    control: str
    figure: Figure
    limit: float
    at_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A bar and the ratios that were measured; they are None where a server did not run.

    The ratios are minimum, median and maximum.
    """

    bar: Bar
    ratios: tuple[float, float, float] | None

    @property
    def is_missed(self) -> bool:
        """Whether the ratio was measured and is beyond the limit."""
        if self.ratios is None:
            return False
        median = self.ratios[1]
        return median < self.bar.limit if self.bar.at_least else median > self.bar.limit

    @property
    def line(self) -> str:
        """The verdict as a row of a Markdown table."""
        bar = self.bar
        sign = "≥" if bar.at_least else "≤"
        if self.ratios is None:
            shown, result = "not measured", ""
        else:
            shown = " · ".join(f"{value:.2f}" for value in self.ratios)
            result = "missed" if self.is_missed else "met"
        return (
            f"| {bar.figure}, {bar.subject} / {bar.control} | {bar.size} | {sign} {bar.limit:g} |"
            f" {shown} | {result} |"
        )


def ratios_of(
    subject: Sequence[PeerSample], control: Sequence[PeerSample], figure: Figure
) -> tuple[float, float, float]:
    """Return minimum, median and maximum of the ratio; both sides have a sample for each round."""
    found = [
        one.figure(figure) / other.figure(figure)
        for one, other in zip(subject, control, strict=True)
    ]
    return min(found), statistics.median(found), max(found)


def judge(bars: Sequence[Bar], rounds: Rounds) -> list[Verdict]:
    """Compare the measured rounds with every bar."""
    verdicts = []
    for bar in bars:
        subject, control = (rounds.get((bar.size, who)) for who in (bar.subject, bar.control))
        measured = ratios_of(subject, control, bar.figure) if subject and control else None
        verdicts.append(Verdict(bar=bar, ratios=measured))
    return verdicts


def row(size: str, subject: str, samples: Sequence[PeerSample]) -> str:
    """Return the figures of one subject as a row of a Markdown table."""
    cpu_ms = [1e3 * one.figure("CPU") for one in samples]
    store_ms = statistics.median(1e3 * one.store_cpu_s / one.units for one in samples)
    per_s = statistics.median(one.figure("throughput") for one in samples)
    cpu = f"{min(cpu_ms):.3f} · {statistics.median(cpu_ms):.3f} · {max(cpu_ms):.3f}"
    store = f"{store_ms:.2f}" if store_ms else "-"
    times = " | ".join(_shown_ms(samples, place) for place in (49, 98))
    return f"| {size} | {subject} | {cpu} | {store} | {times} | {per_s:.0f} |"


def tables(rounds: Rounds, verdicts: Sequence[Verdict]) -> list[str]:
    """Return the lines of two Markdown tables: the figures of every subject, and the verdicts."""
    return [
        "| batch | server | CPU ms per batch | store's CPU ms | p50 ms | p99 ms | batches/s |",
        "|---|---|---|---|---|---|---|",
        *(row(size, name, samples) for (size, name), samples in rounds.items()),
        "",
        "| ratio | batch | bar | minimum · median · maximum | |",
        "|---|---|---|---|---|",
        *(verdict.line for verdict in verdicts),
    ]


def updated_page(page: str, begin: str, section: Sequence[str]) -> str:
    """Return the page with the lines between a mark and the next end replaced."""
    before, _, after = split_section(page, begin, END)
    return "\n".join([before, "", *section, "", after])


def _shown_ms(samples: Sequence[PeerSample], place: int) -> str:
    """Return the median over the rounds of a percentile; a dash where no request was measured."""
    found = [
        statistics.quantiles(one.latencies_us, n=100)[place] / 1e3
        for one in samples
        if len(one.latencies_us) > 1
    ]
    return f"{statistics.median(found):.1f}" if found else "-"


DIRECTORY: Final = "sluice, directory"
DIRECTORY_LISTS: Final = "sluice, directory, lists"
BUCKET: Final = "sluice, S3"
KAFKA: Final = "Kafka"
KAFKA_LISTS: Final = "Kafka, batches"
NATS: Final = "NATS JetStream"
COLLECTOR: Final = "Collector, S3"
AGENT: Final = "sluice agent"
SYSLOG_MEMORY: Final = "syslog-ng, memory"
SYSLOG_DISK: Final = "syslog-ng, disk"
SMALL: Final = "1 KiB"
SIZES: Final = {SMALL: 1 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20}
FILE_SIZE: Final = "1 MiB of a log file"

BARS: Final = (
    *(
        Bar(size=size, subject=DIRECTORY, control=KAFKA, figure="CPU", limit=limit)
        for size, limit in zip(SIZES, (1.0, 1.0, 2.0), strict=True)
    ),
    *(Bar(size=size, subject=DIRECTORY, control=KAFKA, figure="p50", limit=1.0) for size in SIZES),
    *(
        Bar(
            size=size,
            subject=DIRECTORY,
            control=KAFKA,
            figure="throughput",
            limit=1.0,
            at_least=True,
        )
        for size in SIZES
    ),
    Bar(size=SMALL, subject=DIRECTORY_LISTS, control=KAFKA, figure="CPU", limit=0.4),
    *(
        Bar(size=size, subject=BUCKET, control=COLLECTOR, figure="CPU", limit=limit)
        for size, limit in zip(SIZES, (2.5, 1.0, 0.35), strict=True)
    ),
    Bar(size=FILE_SIZE, subject=AGENT, control=SYSLOG_MEMORY, figure="CPU", limit=1.0),
)
