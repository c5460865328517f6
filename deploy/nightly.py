"""Run every check and test, and summarise the results: `python -m deploy.nightly [--write]`.

The stages are the targets of the Makefile. With `--write` the summary replaces the section of the
last run in `docs/verification.md`. The exit code is 1 if a stage failed.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from deploy.programs import find_program
from sluice_protocol.clock import Clock
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "verification.md"
STAGES: Final = (
    *("check", "test", "test-s3", "test-browser", "test-console", "test-package", "test-deploy"),
    *("test-clients", "test-long", "demo"),
)
STAGE_S_MAX: Final = 6 * 3600.0
BEGIN: Final = "<!-- written by `make nightly`: last run -->"
END: Final = "<!-- end -->"

_CLOSING: Final = re.compile(r"^=* ?(\d+ (?:passed|failed|error).*?)(?: in [\d.:hms ()]+)? ?=*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """The result of one stage.

    Attributes:
        name: The target of the Makefile.
        passed: Whether its exit code was 0.
        seconds: Its wall-clock time.
        summary: The closing line of pytest, or the last line of the output.
    """

    name: str
    passed: bool
    seconds: float
    summary: str


def summary_of(output: str) -> str:
    """Return the last closing line of pytest, or else the last line that is not empty."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    closing = [found[1] for line in lines if (found := _CLOSING.match(line)) is not None]
    if closing:
        return closing[-1]
    return lines[-1][:120] if lines else "no output"


def run_stage(name: str, clock: Clock) -> StageResult:
    """Run one target of the Makefile, and show its output."""
    started_ns = clock.monotonic_ns()
    lines = []
    with subprocess.Popen(  # noqa: S603 - the targets are constants
        (find_program("make"), name),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            sys.stdout.write(line)
            lines.append(line)
        code = process.wait(timeout=STAGE_S_MAX)
    return StageResult(
        name=name,
        passed=code == 0,
        seconds=(clock.monotonic_ns() - started_ns) / NS_PER_S,
        summary=summary_of("".join(lines)),
    )


def render_summary(results: list[StageResult], *, revision: str, at: datetime) -> str:
    """Return the summary as Markdown."""
    head = (
        f"{at:%Y-%m-%d}, revision `{revision}`:\n\n"
        "| target | result | time | summary |\n|---|---|---|---|\n"
    )
    rows = (
        f"| `make {one.name}` | {'passed' if one.passed else 'FAILED'}"
        f" | {one.seconds / 60:.0f} min {one.seconds % 60:.0f} s | {one.summary} |\n"
        for one in results
    )
    return head + "".join(rows)


def updated_page(page: str, summary: str) -> str:
    """Return the page with the section of the last run replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{summary}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Run all stages, also after a failure, and print the summary."""
    clock = SystemClock()
    results = [run_stage(name, clock) for name in STAGES]
    revision = subprocess.run(  # noqa: S603 - the arguments are constants
        (find_program("git"), "rev-parse", "--short", "HEAD"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    now = datetime.fromtimestamp(clock.now_ns() / NS_PER_S, UTC)
    summary = render_summary(results, revision=revision, at=now)
    sys.stdout.write(f"\n{summary}")
    if "--write" in arguments:
        PAGE.write_text(updated_page(PAGE.read_text(), summary))
    return 0 if all(one.passed for one in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
