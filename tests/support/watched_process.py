"""A program that a test runs to its end, however slow the machine is, unless it hangs."""

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

STALLED_S = 180.0
"""Time without progress after which a program is taken to hang."""
PROGRESS_S = 4.0
"""Time on a processor, or in its queue, that counts as progress; an idle JVM needs longer than
`STALLED_S` for it. A program that other programs displace is in the queue."""
CPU_S_MAX = 900.0
"""CPU time after which a program is taken to repeat itself: a job of Spark needs about 60 s."""
_POLL_S = 0.5


class _TreeTimes:
    """The times of a process and of those that it started, also of those that have ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[tuple[Path, float], tuple[int, int]] = {}

    def processes(self) -> list[psutil.Process]:
        """Return the processes that run."""
        try:
            root = psutil.Process(self._pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def read_totals_s(self) -> tuple[float, float]:
        """Return the time on processors, and that time with the time in their queues."""
        for one in self.processes():
            with suppress(psutil.NoSuchProcess):
                created_s = one.create_time()
                for task in Path(f"/proc/{one.pid}/task").glob("*/schedstat"):
                    with suppress(OSError):
                        on_cpu, queued, _ = map(int, task.read_text().split())
                        self._seen[task, created_s] = on_cpu, queued
        cpu_s = sum(on_cpu for on_cpu, _ in self._seen.values()) / 1e9
        return cpu_s, cpu_s + sum(queued for _, queued in self._seen.values()) / 1e9


def run_watched(
    words: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: str = "",
    stalled_s: float = STALLED_S,
    cpu_s_max: float = CPU_S_MAX,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; its limits do not depend on the load of the machine.

    Raises:
        AssertionError: The program made no progress for `stalled_s`, or used more than
            `cpu_s_max`. It and everything that it started was killed.
    """
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        given.write(stdin)
        given.seek(0)
        process = subprocess.Popen(
            list(words), cwd=cwd, env=dict(env), stdin=given, stdout=out, stderr=err
        )
        times = _TreeTimes(process.pid)
        try:
            problem = _watch(process, times, stalled_s, cpu_s_max)
        finally:
            for one in times.processes() if process.poll() is None else ():
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            code = process.wait()
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess(list(words), code, out.read(), err.read())
    assert not problem, f"{' '.join(words)} {problem}\n{done.stdout}{done.stderr}"
    return done


def _watch(
    process: subprocess.Popen[bytes], times: _TreeTimes, stalled_s: float, cpu_s_max: float
) -> str:
    """Wait for the end of a process; return what is wrong with it, or an empty text."""
    moved_s, moved_at_s = 0.0, time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
            return ""
        cpu_s, wanted_s = times.read_totals_s()
        if cpu_s > cpu_s_max:
            return f"used more than {cpu_s_max:g} s of CPU time"
        if wanted_s - moved_s >= PROGRESS_S:
            moved_s, moved_at_s = wanted_s, time.monotonic()
        if time.monotonic() - moved_at_s > stalled_s:
            return f"wanted less than {PROGRESS_S:g} s of CPU time in {stalled_s:g} s"
