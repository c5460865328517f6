"""What the demonstration ships: copies of real log files, fed to the agent in two halves.

A copy, because a live file grows while it is compared. The halves, because an agent must follow a
file that grows, and because a gateway is killed between them.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice_protocol.errors import BadUsage

LOGS: Final = Path("/var/log")
INPUT_BYTES_MAX: Final = 64 * 1024 * 1024
_PACKED: Final = {".gz", ".xz", ".zst", ".bz2", ".zip", ".journal", ".db"}
_TEXT_NAMES: Final = {"syslog", "messages", "secure", "maillog", "cron"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One file to ship.

    Attributes:
        source: Where it was copied from.
        copy: The complete copy, which the result is compared with.
        fed: The file that the agent follows; it grows to the copy's bytes.
    """

    source: Path
    copy: Path
    fed: Path

    def lines(self) -> list[bytes]:
        """Gives the lines that must arrive, without their line feeds."""
        return self.copy.read_bytes().split(b"\n")[:-1]


def take_inputs(named: list[Path], folder: Path) -> list[Input]:
    """Copies the files to ship into `folder`.

    A last line without a line feed gets one in the copy: an agent waits for the end of a line.

    Raises:
        BadUsage: A named file cannot be read, or nothing was found.
    """
    sources = list(_named(named)) if named else list(_found())
    if not sources:
        raise BadUsage(f"no readable log files under {LOGS}: name some with INPUT=path")
    for part in ("copies", "logs"):
        (folder / part).mkdir(parents=True)
    return [_take(number, source, folder) for number, source in enumerate(sources)]


def _take(number: int, source: Path, folder: Path) -> Input:
    name = f"{number:02d}-{source.name}"
    taken = Input(source=source, copy=folder / "copies" / name, fed=folder / "logs" / name)
    shutil.copyfile(source, taken.copy)
    with taken.copy.open("rb+") as copy:
        copy.seek(-1, os.SEEK_END)
        if copy.read(1) != b"\n":
            copy.write(b"\n")
    taken.fed.touch()
    return taken


def _named(named: list[Path]) -> Iterator[Path]:
    for path in named:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and file.stat().st_size:
                yield file
        if not path.exists():
            raise BadUsage(f"no such file: check INPUT, path=`{path}`")


def _found() -> Iterator[Path]:
    """Gives the machine's readable text logs, newest first, up to a total size."""
    held = 0
    files = [path for path in LOGS.rglob("*") if _is_log(path)]
    for path in sorted(files, key=lambda path: -path.stat().st_mtime):
        size_bytes = path.stat().st_size
        if size_bytes and held + size_bytes <= INPUT_BYTES_MAX:
            held += size_bytes
            yield path


def _is_log(path: Path) -> bool:
    named = path.suffix == ".log" or path.name in _TEXT_NAMES
    plain = path.suffix not in _PACKED
    return named and plain and path.is_file() and os.access(path, os.R_OK)


def feed(inputs: list[Input], *, part: int, parts: int) -> None:
    """Appends one part of each copy to the file that the agent follows.

    Parts are cut by bytes, so a line may come in two pieces, as it does from a real program.
    """
    for one in inputs:
        body = one.copy.read_bytes()
        cuts = [len(body) * number // parts for number in range(parts + 1)]
        with one.fed.open("ab") as fed:
            fed.write(body[cuts[part] : cuts[part + 1]])
