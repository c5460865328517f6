"""Benchmark `starts`: the processor time of commands, and of services until they are ready.

The control imports aiohttp, which every service needs, and ends. Commands and services run on a
directory store without batches. A service is killed when it reports that it listens.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.measure import Sample, interleave, ratio, report

ROUNDS: Final = int(os.environ.get("SLUICE_BENCH_STARTS", "10"))
CONTROL: Final = "import aiohttp (control)"
SLUICE: Final = (sys.executable, "-m", "sluice_cli")
LISTEN: Final = ("--listen", "127.0.0.1:0")
COMMANDS: Final = {
    "--version": ("--version",),
    "--help": ("--help",),
    "agent --help": ("agent", "--help"),
    "gateway --help": ("gateway", "--help"),
    "status --json": ("status", "--json"),
    "reconciler --once": ("reconciler", "--once", "--json"),
    "agent run --once": (
        *("agent", "run", "--once", "--gateway", "http://127.0.0.1:1", "--agent-id", "a"),
        *("--spool", "spool", "--paths", "one.log", "--host-metrics-s", "0", "--json"),
    ),
}
SERVICES: Final = {
    "gateway": b"gateway_listening",
    "reconciler": b"reconciler_listening",
    "query serve": b"listening on",
    "console": b"console_listening",
}


def run(folder: Path, words: tuple[str, ...], ready: bytes = b"") -> Sample:
    """Run a process until it ends, or until it prints `ready`; return its own processor time."""
    started = time.perf_counter()
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with (
        (folder / "output").open("wb") as output,
        subprocess.Popen(
            words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        ) as process,
    ):
        for line in process.stdout or ():
            output.write(line)
            if ready and ready in line:
                process.send_signal(signal.SIGKILL)
                break
        else:
            if ready:
                raise RuntimeError((folder / "output").read_text())
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0  # it has been waited for
    spent = used.ru_utime + used.ru_stime
    return Sample(wall_s=time.perf_counter() - started, cpu_s=spent, units=1)


def prepare(folder: Path) -> None:
    """Create a store, a key and a principals file."""
    subprocess.run([*SLUICE, "init"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    made = subprocess.run(
        [*SLUICE, "agent", "init", "--agent-id", "a", "--json"],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
    )
    (folder / "principals.toml").write_text(json.loads(made.stdout)["principal"])
    (folder / "one.log").write_text("")


def main() -> None:
    """Run all starts in turn, and report their processor time."""
    with tempfile.TemporaryDirectory(prefix="starts-bench-") as name:
        folder = Path(name)
        prepare(folder)
        subjects: dict[str, Callable[[], Sample]] = {
            CONTROL: partial(run, folder, (sys.executable, "-c", "import aiohttp"))
        }
        for command, words in COMMANDS.items():
            subjects[command] = partial(run, folder, (*SLUICE, *words))
        for service, ready in SERVICES.items():
            words = (*SLUICE, *service.split(), *LISTEN)
            subjects[service] = partial(run, folder, words, ready)
        samples = interleave(subjects, rounds=ROUNDS)
    lines = []
    for subject, taken in samples.items():
        least, median, most = ratio(taken, samples[CONTROL], lambda one: one.cpu_s)
        middle = sorted(one.cpu_s for one in taken)[len(taken) // 2]
        lines.append(
            f"{subject}: {middle:.2f} s, of the control {least:.2f} · {median:.2f} · {most:.2f}"
        )
    report("starts", lines, samples)


if __name__ == "__main__":
    main()
