"""Record a history while clients and faults run. docs/histories.md describes the files."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TextIO

from sluice_protocol.clock import Clock


class Recorder:
    """Writes the events of all clients in the order in which they happen in this process."""

    def __init__(self, folder: Path, clock: Clock, payload_prefix: str = "p") -> None:
        """Create the files in a folder; the prefix makes the texts of this run unique."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.clock = clock
        self.ends: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self.firings: Counter[str] = Counter()
        self._payload_prefix = payload_prefix
        self._payloads = 0
        self._operations = 0
        self._open: dict[int, Mapping[str, Any]] = {}
        self._history = (folder / "history.jsonl").open("w")
        self._faults = (folder / "faults.jsonl").open("w")

    def __enter__(self) -> Self:
        """Return the recorder, whose files are closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._history.close()
        self._faults.close()

    def new_payload(self) -> str:
        """Return the text with which the records of the next batch begin."""
        self._payloads += 1
        return f"{self._payload_prefix}{self._payloads}"

    def invoke(self, client: int, call: str, *, at_ns: int | None = None, **fields: object) -> int:
        """Record the beginning of an operation, and return its number."""
        self._operations += 1
        event = {"client": client, "op": self._operations, "event": "invoke", "call": call}
        self._open[self._operations] = event | fields
        _write(self._history, {**event, "time": at_ns or self.clock.now_ns(), **fields})
        return self._operations

    def end(self, op: int, event: str, **fields: object) -> None:
        """Record the end of an operation; the events are `ok`, `fail` and `unknown`."""
        begun = self._open.pop(op)
        self.ends[event] += 1
        if event != "unknown" and "result" in fields:
            self.results[f"{begun['call']} {fields['result']}"] += 1
        line = {"client": begun["client"], "op": op, "event": event, "time": self.clock.now_ns()}
        _write(self._history, {**line, **fields})

    def repeat(self, op: int) -> None:
        """Record, before it happens, that the network delivers an open operation again.

        No client sees the outcome of the copy.
        """
        if (begun := self._open.get(op)) is None:
            return
        fields = {k: v for k, v in begun.items() if k not in {"client", "op", "event", "call"}}
        copy = self.invoke(0, begun["call"], **fields)
        self.end(copy, "unknown", result="repeated by the proxy")

    def fired(self, fault: str, target: str) -> None:
        """Record that a fault happened."""
        self.firings[fault] += 1
        _write(self._faults, {"time": self.clock.now_ns(), "fault": fault, "target": target})
        self._faults.flush()  # so that a run can be watched


def _write(file: TextIO, value: object) -> None:
    file.write(json.dumps(value) + "\n")
