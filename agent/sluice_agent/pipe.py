"""The input of a pipe: `app | sluice forward`."""

import os
import select
from dataclasses import dataclass
from typing import Final

from sluice_agent.lines import logs_from_block
from sluice_agent.parts import RECORD_COST_BYTES, Part
from sluice_agent.tail import BLOCK_BYTES, LINE_BYTES_MAX, character_end
from sluice_agent.timestamps import Zone
from sluice_protocol.units import UnixNs

WAIT_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Piped:
    """What one read of the pipe gave.

    Attributes:
        part: Whole lines, if any came.
        ended: The writer closed the pipe and everything was given.
    """

    part: Part | None
    ended: bool


class PipeInput:
    """Reads lines from a file descriptor until it ends. It blocks for at most `WAIT_S`."""

    def __init__(self, descriptor: int, *, zone: Zone = None) -> None:
        """Takes an open descriptor; it stays open."""
        self._descriptor = descriptor
        self._zone = zone
        self._rest = b""

    def read(self, *, now_ns: UnixNs) -> Piped:
        """Gives the lines that came, if any came within `WAIT_S`."""
        if not select.select([self._descriptor], [], [], WAIT_S)[0]:
            return Piped(part=None, ended=False)
        data = os.read(self._descriptor, BLOCK_BYTES)
        if not data:
            rest, self._rest = self._rest, b""
            return Piped(part=self._part(rest, now_ns), ended=True)
        block = self._rest + data
        cut = block.rfind(b"\n") + 1
        if not cut and len(block) >= LINE_BYTES_MAX:
            end = character_end(block)
            self._rest = block[end:]
            return Piped(part=self._part(block[:end], now_ns, continues=True), ended=False)
        self._rest = block[cut:]
        return Piped(part=self._part(block[:cut], now_ns), ended=False)

    def _part(self, block: bytes, now_ns: UnixNs, *, continues: bool = False) -> Part | None:
        if not block:
            return None
        columns = logs_from_block(block, arrived_ns=now_ns, zone=self._zone, continues=continues)
        return Part(columns=columns, cost_bytes=len(block) + RECORD_COST_BYTES * len(columns))
