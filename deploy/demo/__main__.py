"""`make demo`: every step below is done by the `sluice` command, as an operator would do it.

It leaves `.demo/`, a store that `sluice query`, `batches`, `gaps` and `explain` can be tried on.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from deploy.demo.check import compare, count_rows, read_logs
from deploy.demo.inputs import Input, feed, take_inputs
from deploy.demo.processes import (
    DemoFailed,
    Processes,
    answers,
    environment,
    free_port,
    wait_until,
)
from sluice_protocol.errors import BadUsage

ROOT: Final = Path(".demo")
AGENT: Final = "demo-host"
TOOL: Final = "demo-tool"
PAST: Final = "2020-01-01T00:00:00Z"
FUTURE: Final = "2100-01-01T00:00:00Z"
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Demo:
    """What the steps share."""

    folder: Path
    store: str
    processes: Processes
    inputs: list[Input]
    ports: dict[str, int]
    report: list[str] = field(default_factory=list)

    @property
    def gateways(self) -> str:
        """The gateways' URLs, as agents take them."""
        return ",".join(f"http://127.0.0.1:{port}" for port in self.ports.values())

    def note(self, line: str) -> None:
        """Adds a line to the closing report."""
        self.report.append(line)

    def sluice(self, *arguments: str, expect: int = 0) -> Any:  # noqa: ANN401 - any JSON
        """Runs a command on the demonstration's store and gives its JSON."""
        return self.processes.run_json(*arguments, "--store", self.store, expect=expect)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Prints a step and how long it took."""
    print(f"  {what} …", end="", flush=True)  # noqa: T201 - a person watches
    started_s = time.monotonic()  # noqa: TID251 - shown, nothing is decided by it
    yield
    print(f" {time.monotonic() - started_s:.1f} s")  # noqa: T201, TID251


def main() -> int:
    """Runs the demonstration; 0 only if every check held."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--input", nargs="*", default=[], type=Path, help="files to ship")
    named = parser.parse_args().input
    demo = None
    try:
        demo = prepare([path.resolve() for path in named])
        for act in (start, ship, disturb, carry, look, clean_up):
            act(demo)
    except (DemoFailed, BadUsage) as error:
        print(f"\ndemo failed: {error}")  # noqa: T201
        return 1
    finally:
        if demo is not None:
            demo.processes.stop_all()
    tell(demo)
    return 0
