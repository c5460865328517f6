"""Run checks and tests, and summarise them: `python -m deploy.nightly [--write] [TARGET …]`.

The stages are targets of the Makefile; without a name all of them run. With `--write` each stage
replaces its own row of the last results in `docs/verification.md` when it ends, so an interrupted
run keeps the rows of the stages before. The exit code is 1 if a stage failed.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from select import select
from typing import Final

from deploy.page_sections import split_section
from deploy.programs import find_program
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "verification.md"
STAGES: Final = (
    *("check", "test", "test-s3", "test-browser", "test-console", "test-package", "test-deploy"),
    *("test-clients", "test-grafana", "test-long", "demo"),
)
STAGE_S_MAX: Final = 2 * 3600.0
ENDED_S: Final = 60.0
"""Time for a target to end after it has closed its output."""
BEGIN: Final = "<!-- written by `make nightly`: last run -->"
END: Final = "<!-- end -->"

_CLOSING: Final = re.compile(
    r"^=* ?(\d+ (?:passed|failed|error).*?|all checks passed:)(?: in [\d.:hms ()]+)? ?=*$"
)

_MAKE: Final = re.compile(r"make(\[\d+\])?: ")
_ROW: Final = re.compile(
    r"^\| `make (?P<name>[a-z0-9-]+)` \| (?P<result>\w+) \| [\d-]+ \| `(?P<revision>[^`]+)`"
    r" \| (?P<minutes>\d+) min (?P<seconds>\d+) s \|.*\|$",
    re.MULTILINE,
)
_HEAD: Final = "| target | result | day | revision | time | summary |\n|---|---|---|---|---|---|\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """The result of one stage.

    `summary` is the closing line of pytest or of the demonstration, or the last line of the output.
    """

    def row(self, *, revision: str, at: datetime) -> str:
        """Return the result as a row of the table in Markdown."""
        result = "passed" if self.passed else "FAILED"
        minutes, seconds = divmod(round(self.seconds), 60)
        summary = self.summary.replace("|", "\\|")
        return (
            f"| `make {self.name}` | {result} | {at:%Y-%m-%d} | `{revision}`"
            f" | {minutes} min {seconds} s | {summary} |"
        )

    name: str
    passed: bool
    seconds: float
    summary: str


def summary_of(output: str) -> str:
    """Return the last closing line of pytest or the demonstration, or else the last line."""
    stripped = (line.strip() for line in output.splitlines())
    lines = [line for line in stripped if line and not _MAKE.match(line)]
    closing = [found[1] for line in lines if (found := _CLOSING.match(line)) is not None]
    if closing:
        return closing[-1].removesuffix(":")
    return lines[-1][:120] if lines else "no output"


def _chunks(process: "subprocess.Popen[bytes]") -> Iterator[bytes]:
    """Yield what a target prints, and empty bytes each second without output, until it ends."""
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    while True:
        ready, _, _ = select([process.stdout], [], [], 1.0)
        chunk = os.read(process.stdout.fileno(), 64 * 1024) if ready else b""
        if not chunk and (ready or process.poll() is not None):
            return
        yield chunk


def run_stage(name: str, clock: Clock) -> StageResult:
    """Run one target of the Makefile, and show its output.

    A target above its time is killed with its processes. A process that outlives its target keeps
    the pipe open, but not the run.
    """
    started_ns = clock.monotonic_ns()
    end_ns = started_ns + int(STAGE_S_MAX * NS_PER_S)
    output = bytearray()
    with subprocess.Popen(  # noqa: S603 - the targets are constants
        (find_program("make"), name),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            for chunk in _chunks(process):
                output += chunk
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
                if clock.monotonic_ns() > end_ns:
                    output += f"\nkilled after {STAGE_S_MAX:g} s\n".encode()
                    break
            else:
                process.wait(timeout=ENDED_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return StageResult(
        name=name,
        passed=process.returncode == 0,
        seconds=(clock.monotonic_ns() - started_ns) / NS_PER_S,
        summary=summary_of(output.decode(errors="replace")),
    )


def updated_page(page: str, row: str) -> str:
    """Return the page with the row of one target replaced or added, in the order of the stages.

    A sentence below the table states whether every target passed on the revision of this row.
    """
    before, old, after = split_section(page, BEGIN, END)
    rows = {found["name"]: found for text in (old, row) for found in _ROW.finditer(text)}
    table = _HEAD + "".join(f"{rows[name][0]}\n" for name in STAGES if name in rows)
    newest = _ROW.match(row)
    revision = newest["revision"] if newest else ""
    return f"{before}\n\n{table}\n{_verdict(rows, revision)}\n\n{after}"


def _verdict(rows: Mapping[str, re.Match[str]], revision: str) -> str:
    """Return a sentence about all targets on one revision."""
    here = {name: row for name, row in rows.items() if row["revision"] == revision}
    failed = [name for name in STAGES if name in here and here[name]["result"] != "passed"]
    missing = [name for name in STAGES if name not in here]
    if not failed and not missing:
        seconds = sum(60 * int(row["minutes"]) + int(row["seconds"]) for row in here.values())
        return f"All {len(STAGES)} targets passed on `{revision}`, in {seconds / 60:.0f} minutes."
    parts = (("failed", failed), ("not run on it", missing))
    listed = "; ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)
    return f"Not all targets passed on `{revision}`: {listed}."


def _git(*words: str) -> str:
    return subprocess.run(  # noqa: S603 - the arguments are constants
        (find_program("git"), *words), cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _revision() -> str:
    """Return the commit, with `+changes` if another file than the page of results differs."""
    changes = _git("status", "--porcelain", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    return _git("rev-parse", "--short", "HEAD") + ("+changes" if changes else "")


def main(arguments: list[str]) -> int:
    """Run the stages, also after a failure, and print the results."""
    names = [one for one in arguments if one != "--write"] or list(STAGES)
    if unknown := sorted(set(names) - set(STAGES)):
        raise BadUsage(f"unknown target: use {' '.join(STAGES)}, target=`{' '.join(unknown)}`")
    clock = SystemClock()
    passed, rows = True, []
    for name in names:
        revision = _revision()
        result = run_stage(name, clock)
        now = datetime.fromtimestamp(clock.now_ns() / NS_PER_S, UTC)
        rows.append(result.row(revision=revision, at=now))
        if "--write" in arguments:
            PAGE.write_text(updated_page(PAGE.read_text(), rows[-1]))
        passed = passed and result.passed
    sys.stdout.write(f"\n{_HEAD}" + "".join(f"{row}\n" for row in rows))
    return 0 if passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BadUsage as error:
        sys.exit(str(error))
