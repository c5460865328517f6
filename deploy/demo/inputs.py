"""Input of the demonstration: copies of real log files, given to the agent in two halves.

Copies are used because a live file could grow during the comparison. Two halves are used because an
agent must follow a growing file, and because a gateway is killed between them.
"""

import os
import shutil
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice_protocol.errors import BadUsage

LOGS: Final = Path("/var/log")
INPUT_BYTES_MAX: Final = 64 * 1024 * 1024
_COMPRESSED: Final = {".gz", ".xz", ".zst", ".bz2", ".zip", ".journal", ".db"}
_TEXT_NAMES: Final = {"syslog", "messages", "secure", "maillog", "cron"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One file to ship.

    Attributes:
        source: The original file.
        copy: The complete copy, with which the result is compared.
        fed: The file that the agent follows; it grows until it equals the copy.
    """

    source: Path
    copy: Path
    fed: Path

    def lines(self) -> list[bytes]:
        """Return the lines that must arrive, without their ends and without a byte order mark."""
        lines = self.copy.read_bytes().removeprefix(BOM_UTF8).split(b"\n")[:-1]
        return [line.removesuffix(b"\r") for line in lines]


def copy_inputs(named: list[Path], folder: Path) -> list[Input]:
    """Copy the files to ship into `folder`.

    A last line without a line feed gets one in the copy, because an agent waits for the end of a
    line.
    """
    sources = list(_named(named)) if named else list(_system_logs())
    if not sources:
        raise BadUsage(f"no readable log files under {LOGS}: set INPUT=path")
    for part in ("copies", "logs"):
        (folder / part).mkdir(parents=True)
    return [_copy(number, source, folder) for number, source in enumerate(sources)]


def _copy(number: int, source: Path, folder: Path) -> Input:
    name = f"{number:02d}-{source.name}"
    copied = Input(source=source, copy=folder / "copies" / name, fed=folder / "logs" / name)
    shutil.copyfile(source, copied.copy)
    with copied.copy.open("rb+") as copy:
        copy.seek(-1, os.SEEK_END)
        if copy.read(1) != b"\n":
            copy.write(b"\n")
    copied.fed.touch()
    return copied


def _named(named: list[Path]) -> Iterator[Path]:
    for path in named:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and file.stat().st_size:
                yield file
        if not path.exists():
            raise BadUsage(f"no such file: check INPUT, path=`{path}`")


def _system_logs() -> Iterator[Path]:
    """Yield the machine's readable text logs, newest first, up to a total size."""
    total_bytes = 0
    files = [path for path in LOGS.rglob("*") if _is_log(path)]
    for path in sorted(files, key=lambda path: -path.stat().st_mtime):
        size_bytes = path.stat().st_size
        if size_bytes and total_bytes + size_bytes <= INPUT_BYTES_MAX:
            total_bytes += size_bytes
            yield path


def _is_log(path: Path) -> bool:
    named = path.suffix == ".log" or path.name in _TEXT_NAMES
    plain = path.suffix not in _COMPRESSED
    return named and plain and path.is_file() and os.access(path, os.R_OK)


def feed(inputs: list[Input], *, part: int, parts: int) -> None:
    """Append one part of each copy to the file that the agent follows.

    Parts are split by bytes, so a line may arrive in two pieces, as from a real program.
    """
    for one in inputs:
        body = one.copy.read_bytes()
        cuts = [len(body) * number // parts for number in range(parts + 1)]
        with one.fed.open("ab") as fed:
            fed.write(body[cuts[part] : cuts[part + 1]])
