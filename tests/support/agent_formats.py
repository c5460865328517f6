"""Records that an agent's file input reads from a file, and texts of each format."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice_agent.inputs.files import FileInput
from sluice_agent.settings import FileSettings
from sluice_agent.spool.format import FileCheckpoint
from sluice_protocol.columns import LogColumns
from sluice_protocol.ndjson import attribute_rows
from sluice_protocol.units import UnixNs

ARRIVED_NS = 1
Record = tuple[int, str, int, dict[str, str]]
"""Time, body, severity and attributes without the path."""


@dataclass
class Reader:
    """A file input with a spool that accepts everything immediately, and what it read."""

    path: Path
    options: dict[str, Any] = field(default_factory=dict)
    now_s: float = 0.0
    records: list[Record] = field(default_factory=list)
    checkpoints: dict[str, FileCheckpoint] = field(default_factory=dict)
    input: FileInput | None = None

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was read and not sealed, as after a kill."""
        if self.input is not None:
            self.input.close()
        self.options.setdefault("patterns", (str(self.path),))
        self.input = FileInput(FileSettings(**self.options), self.checkpoints)

    def poll(self, after_s: float = 0.0, *, final: bool = False) -> list[Record]:
        """Poll until nothing is new, at one time; return the new records."""
        before = len(self.records)
        self.now_s += after_s
        while self._once(final=final):
            pass
        return self.records[before:]

    def _once(self, *, final: bool) -> bool:
        assert self.input is not None
        polled = self.input.poll(
            now_s=self.now_s, now_ns=UnixNs(ARRIVED_NS), sealed=self.checkpoints, final=final
        )
        self.checkpoints.update({each.source: each for each in polled.new_checkpoints})
        for block in polled.blocks:
            assert isinstance(block.columns, LogColumns)
            self.records += records_of(block.columns)
            self.checkpoints.update({each.source: each for each in block.checkpoints})
        return bool(polled.blocks)


def records_of(columns: LogColumns) -> list[Record]:
    """Return the records of columns; the path is checked and left out."""
    rows = list(attribute_rows(columns.attributes, len(columns)))
    severity = [0] * len(columns) if columns.severity is None else columns.severity.tolist()
    for row in rows:
        assert row.pop("log.file.path", "/")
    bodies = [one.decode() for one in columns.body.slices()]
    return list(zip(columns.ts.tolist(), bodies, severity, rows, strict=True))


def read_whole(path: Path, data: bytes, **options: Any) -> list[Record]:
    """Return the records of a file with this content, read to its end."""
    path.write_bytes(data)
    reader = Reader(path, options)
    found = reader.poll(final=True)
    assert reader.input is not None
    reader.input.close()
    return found


def cri(stream: str, tag: str, text: str, ns: int = 1) -> bytes:
    """Return a line as CRI runtimes write it."""
    return f"2026-11-28T10:00:00.{ns:09d}Z {stream} {tag} {text}\n".encode()


def docker(stream: str, tag: str, text: str, ns: int = 1) -> bytes:
    """Return a line as Docker's `json-file` has it."""
    log = text if tag == "P" else text + "\n"
    time = f"2026-11-28T10:00:00.{ns:09d}Z"
    one = {"log": log, "stream": stream, "time": time}
    return json.dumps(one, separators=(",", ":")).encode() + b"\n"
