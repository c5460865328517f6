"""Real clients of the doors: where `deploy/clients/build.sh` put them, and how a test runs one."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Protocol

from support.door_fleet import Fleet

from sluice_doors.table import DoorName

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sluice"
BIN, DEBIAN = CACHE / "bin", CACHE / "debian"
NODE, JAVA, PYTHON = CACHE / "node", CACHE / "java", CACHE / "python"
SEND = Path(__file__).parents[2] / "docs/send"
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/syslog-ng")
NUMBER = re.compile(rb"record-(\d{8})")
STOPPED_S = 90
SAMPLE = ("--kind", "metrics", "--attribute", "record={record}")
"""Options of `sluice query` that find a sample by its label."""


def line_of(number: int) -> str:
    """Return the text of a record, which contains its number wherever it is stored."""
    return f"GET /checkout 200 record-{number:08d}"


class Sending(Protocol):
    """A client that runs."""

    def feed(self, numbers: range) -> None:
        """Hand records to the client, which sends them when it decides to."""

    def stop(self) -> None:
        """Stop the client cleanly; it may send what it still has."""

    def errors(self) -> list[str]:
        """Return what the client itself reports as lost, by its counters or its log."""


@dataclass(frozen=True, kw_only=True)
class ClientCase:
    """A client and what is known of it; `docs/doors.md` has the same facts as a table.

    Attributes:
        name: The name of its page and configuration in `docs/send`.
        door: The protocol that it speaks.
        start: Runs it until the block ends.
        retries: Whether it repeats a request that failed.
        keeps_identity: Whether a repeated request has the same records.
        lost_max: Records that it can lose although it repeats requests.
        search: Options of `sluice query` that find one record, as its page describes.
    """

    name: str
    door: DoorName
    start: Callable[[Fleet, Path], AbstractContextManager[Sending]]
    retries: bool = True
    keeps_identity: bool = True
    lost_max: int = 0
    search: tuple[str, ...] = ("-q", "{record}")


def environment(served: Fleet, **more: str) -> dict[str, str]:
    """Return what the configurations in `docs/send` read from the environment."""
    host, _, port = served.address.partition(":")
    return {
        **os.environ,
        "SLUICE_URL": served.url,
        "SLUICE_HOST": host,
        "SLUICE_PORT": port,
        "SLUICE_TOKEN": served.token,
        **more,
    }


def substituted(name: str, into: Path, values: Mapping[str, str]) -> Path:
    """Do as `envsubst` does, for a client that reads no environment variables."""
    path = into / name
    path.write_text(Template((SEND / name).read_text()).substitute(values), encoding="utf-8")
    return path


def debian_environment() -> dict[str, str]:
    """Return the environment of programs that are unpacked and not installed."""
    return {"LD_LIBRARY_PATH": ":".join(str(DEBIAN / one) for one in LIBRARIES)}


@dataclass
class Program:
    """A client that runs as a process.

    Attributes:
        process: The process.
        log: Its output.
        faults: What its log must not contain.
        clean: Exit codes of a clean stop.
    """

    process: subprocess.Popen[bytes]
    log: Path
    faults: re.Pattern[str]
    clean: tuple[int, ...] = (0,)
    extra: list[str] = field(default_factory=list)

    def stop(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        else:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOPPED_S)
        if code not in self.clean:
            self.extra.append(f"exit code {code}")

    def errors(self) -> list[str]:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if self.faults.search(line)] + self.extra


@contextmanager
def program(
    command: Iterable[object],
    log: Path,
    env: Mapping[str, str],
    *,
    faults: str,
    stdin: bool = False,
    clean: tuple[int, ...] = (0,),
) -> Iterator[Program]:
    """Run a client until the block ends."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(part) for part in command],
            env=dict(env),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=log.parent,
        )
    try:
        yield Program(process, log, re.compile(faults), clean)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdin is not None:
            with suppress(OSError):  # what the client has not read is lost
                process.stdin.close()
