"""Benchmark `console`: a first visit, and a chart of a million points, in Debian's Chromium.

A visit is a new browser context, so nothing is cached; it ends when the overview is usable. Its
control is the icon of the same server, loaded in the same way. The chart's control has a hundredth
of the points. The console is that of `sluice up` with one record.
"""

import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, expect, sync_playwright

from benchmarks.measure import Sample, interleave, ratio, report
from benchmarks.starts import deployment

ROUNDS: Final = int(os.environ.get("SLUICE_BENCH_CONSOLE", "10"))
ICON: Final = "the icon (control)"
SHORT: Final = "10 000 points (control)"
POINTS: Final = 1_000_000
_DRAW: Final = """async (count) => {
  const { default: UPlot } = await import("/static/vendor/uPlot.mjs");
  const times = new Float64Array(count), values = new Float64Array(count);
  for (let at = 0; at < count; at += 1) { times[at] = at; values[at] = Math.sin(at / 5e4) }
  const began = performance.now();
  const line = { stroke: "teal", points: { show: false } };
  const plot = new UPlot({ width: 900, height: 320, series: [{}, line] }, [times, values],
    document.querySelector("main"));
  await new Promise((done) => setTimeout(done));
  const took = performance.now() - began;
  plot.destroy();
  return took / 1e3;
}"""


def visit(browser: Browser, url: str, heading: str = "") -> Sample:
    """Load a page without a cache, until it shows a heading."""
    context = browser.new_context()
    page = context.new_page()
    began_s = time.perf_counter()
    page.goto(url)
    if heading:
        expect(page.get_by_role("heading", name=heading)).to_be_visible(timeout=60_000)
    took_s = time.perf_counter() - began_s
    context.close()
    return Sample(wall_s=took_s, cpu_s=0, units=1)


def draw(page: Page, points: int) -> Sample:
    """Draw a chart in an open page."""
    return Sample(wall_s=page.evaluate(_DRAW, points), cpu_s=0, units=1)


def figures(subject: str, taken: list[Sample], control: list[Sample]) -> str:
    """Return the least and the median time of a subject, and its ratio to the control."""
    walls = sorted(one.wall_s for one in taken)
    least, median, most = ratio(taken, control, lambda one: one.wall_s)
    return (
        f"{subject}: least {walls[0]:.3f} s, median {walls[len(walls) // 2]:.3f} s, of the control"
        f" {least:.1f} · {median:.1f} · {most:.1f}"
    )


def main() -> None:
    """Visit and draw in turn, and report the times."""
    with (
        tempfile.TemporaryDirectory(prefix="console-bench-") as folder,
        deployment(Path(folder)) as addresses,
        sync_playwright() as driver,
    ):
        url = f"http://{addresses['console']}/"
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        visits = interleave(
            {
                ICON: partial(visit, browser, f"{url}static/icon.svg"),
                "overview": partial(visit, browser, url, "Gateways"),
            },
            rounds=ROUNDS,
        )
        page = browser.new_page()
        page.goto(url)
        charts = interleave(
            {
                SHORT: partial(draw, page, POINTS // 100),
                "1 000 000 points": partial(draw, page, POINTS),
            },
            rounds=ROUNDS,
        )
        browser.close()
    lines = [figures(name, taken, visits[ICON]) for name, taken in visits.items()]
    lines += [figures(name, taken, charts[SHORT]) for name, taken in charts.items()]
    report("console", lines, visits | charts)


if __name__ == "__main__":
    main()
