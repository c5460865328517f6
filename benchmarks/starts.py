"""Benchmark `starts`: the processor time of commands, and of services until they are ready.

The control imports aiohttp, which every service needs, and ends. Commands and services run on a
directory store without batches. A service is killed when it reports that it listens.

Then `sluice up` runs without maintenance and has one record, and whole commands that search it are
compared with `python -c pass` and with `curl` of the same address.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
NOTHING: Final = "python -c pass (control)"
CURL: Final = "curl (control)"
QUESTIONS: Final = {
    "query -q hello": ("query", "-q", "hello"),
    'query \'{level=""} |= "hello"\'': ("query", '{level=""} |= "hello"'),
    "query -q hello --json": ("query", "-q", "hello", "--json"),
}
PORTS: Final = ("gateway", "otlp_grpc", "forward", "reconciler", "query", "console")
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


@contextmanager
def deployment(folder: Path) -> Iterator[dict[str, str]]:
    """Run `sluice up` with one record; yield the address of each service."""
    words = [word for name in PORTS for word in ("--port", f"{name}=0")]
    with subprocess.Popen(
        [*SLUICE, "up", "--json", "--without", "maintain", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            state = json.loads((process.stdout or sys.stdin.buffer).readline())
            token = Path(state["token_file"]).read_text().strip()
            request = urllib.request.Request(
                f"http://{state['addresses']['gateway']}/v1/ingest",
                b'{"message": "hello"}',
                {"Authorization": f"Bearer {token}"},
            )
            urllib.request.urlopen(request).close()  # noqa: S310 - a service of this run
            yield state["addresses"]
        finally:
            process.send_signal(signal.SIGTERM)


def measure_questions(folder: Path) -> dict[str, list[Sample]]:
    """Measure whole commands that a running service computes the answer of."""
    with deployment(folder) as addresses:
        url = f"http://{addresses['query']}/v1/query?query=%7B%7D|=%22hello%22"
        subjects: dict[str, Callable[[], Sample]] = {
            NOTHING: partial(run, folder, (sys.executable, "-c", "pass")),
            CURL: partial(run, folder, ("curl", "-s", url)),
        }
        for command, words in QUESTIONS.items():
            run(folder, (*SLUICE, *words, "--wait"), b"hello")  # it finds the record
            subjects[command] = partial(run, folder, (*SLUICE, *words))
        return interleave(subjects, rounds=ROUNDS, warmup=3)


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
    with tempfile.TemporaryDirectory(prefix="starts-bench-") as name:
        questions = measure_questions(Path(name))
    for subject, taken in questions.items():
        walls = sorted(one.wall_s for one in taken)
        spent = min(one.cpu_s for one in taken)
        lines.append(
            f"{subject}: least {walls[0]:.3f} s, median {walls[len(walls) // 2]:.3f} s, least"
            f" processor time {spent:.3f} s"
        )
    report("starts", lines, samples | questions)


if __name__ == "__main__":
    main()
