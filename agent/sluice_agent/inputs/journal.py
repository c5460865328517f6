"""The journal of systemd, read by `journalctl`.

    journalctl ──entries──> batcher ──commit──> spool, with the cursor of the last entry

The cursor is the position: it is stored with the records, as that of a file is, and a run begins
after it. So a kill of the agent or of `journalctl` loses no entry and sends none twice.

Sources: systemd's `JOURNAL_EXPORT_FORMATS.md` (JSON: bytes that are not UTF-8 are a list of
numbers, and fields that are repeated a list), `systemd.journal-fields(7)`, `journalctl(1)`.
"""

import asyncio
import contextlib
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from sluice_agent.spool.batching import RecordBlock, cost_bytes
from sluice_agent.spool.format import JOURNAL_SOURCE, FileCheckpoint
from sluice_doors.attributes import typed_text
from sluice_doors.decoded import ERROR_ATTRIBUTE, Tally
from sluice_doors.json.values import read_json
from sluice_doors.otlp.logs import logs_from_rows
from sluice_doors.syslog import CONTINUES, SEVERITIES
from sluice_protocol.clock import Clock
from sluice_protocol.errors import UNREADABLE_JSON, BadUsage
from sluice_protocol.records import LogRecord
from sluice_protocol.times import TS_END
from sluice_protocol.units import UnixNs

ENTRY_BYTES_MAX: Final = 8 * 1024 * 1024
"""A larger entry is kept as pieces of text."""
PIECE_BYTES: Final = 1024 * 1024
AGAIN_S: Final = (1.0, 30.0)
"""How soon `journalctl` is started again after it ended; the time doubles up to the second."""
_READ_BYTES: Final = 256 * 1024
_NS_PER_US: Final = 1000
_US_PER_S: Final = 1_000_000
_CURSOR: Final = "__CURSOR"
_TIME: Final = "__REALTIME_TIMESTAMP"
_BODY: Final = "MESSAGE"
_PRIORITY: Final = "PRIORITY"
_OWN: Final = frozenset([_CURSOR, _TIME, "__MONOTONIC_TIMESTAMP", "__SEQNUM", "__SEQNUM_ID", _BODY])
_log: Final = structlog.get_logger("sluice.agent.journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntries:
    """Entries, and the cursor of the last that has one; empty if none has."""

    records: list[LogRecord]
    cursor: str


def journal_command(cursor: str, *, follow: bool, only_new: bool, since_s: int = 0) -> list[str]:
    """Return the command that prints the entries after a cursor, and new ones if `follow`.

    Without a cursor they begin at a time, or with the oldest, or if `only_new` with the last.
    """
    command = ["journalctl", "--output=json", "--all", "--quiet", "--no-pager"]
    if follow:
        command.append("--follow")
    if cursor:
        return [*command, "--no-tail", f"--after-cursor={cursor}"]
    if since_s:
        return [*command, "--no-tail", f"--since=@{since_s}"]
    return [*command, "--lines=1" if only_new else "--no-tail"]


def read_journal_entries(lines: Iterable[bytes], *, arrived_ns: int) -> JournalEntries:
    """Return the records of entries; what is no entry is kept as text."""
    records: list[LogRecord] = []
    cursor = ""
    for line in lines:
        try:
            entry = read_json(line)
        except UNREADABLE_JSON as error:
            entry, reason = None, str(error)
        else:
            reason = "entry is not an object"
        if isinstance(entry, dict):
            records.append(_record(entry, arrived_ns))
            cursor = str(entry.get(_CURSOR) or cursor)
        else:
            text = line.decode(errors="surrogateescape")
            records.append(
                LogRecord(ts_ns=arrived_ns, body=text, attributes={ERROR_ATTRIBUTE: reason})
            )
    return JournalEntries(records=records, cursor=cursor)


def _record(entry: Mapping[str, Any], arrived_ns: int) -> LogRecord:
    priority = _digits(entry.get(_PRIORITY), len(SEVERITIES))
    attributes = {key: _text(value) for key, value in entry.items() if key not in _OWN and key}
    if priority is not None:
        del attributes[_PRIORITY]
    time_us = _digits(entry.get(_TIME), TS_END // _NS_PER_US)
    return LogRecord(
        ts_ns=arrived_ns if time_us is None else time_us * _NS_PER_US,
        body=_text(entry.get(_BODY, "")),
        severity=0 if priority is None else SEVERITIES[priority],
        attributes=attributes,
    )


def _digits(value: object, end: int) -> int | None:
    """Return the number that a text is, if it is below `end`."""
    is_number = isinstance(value, str) and value.isascii() and value.isdigit()
    number = int(value) if is_number and isinstance(value, str) and len(value) < 20 else end  # noqa: PLR2004 - 64 bits
    return number if number < end else None


def _text(value: object) -> str:
    """Return a field as text with its type; bytes that are not UTF-8 as surrogates."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(one, int) and 0 <= one < 256 for one in value):  # noqa: PLR2004 - bytes
        return bytes(value).decode(errors="surrogateescape")
    return typed_text(value)


class EntryLines:
    """Splits what `journalctl` prints into lines, with bounded memory."""

    def __init__(self) -> None:
        self._rest = b""
        self._in_piece = False

    def feed(self, data: bytes) -> tuple[list[bytes], list[bytes]]:
        """Return whole lines, and pieces of a line that is too long."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        pieces: list[bytes] = []
        if lines and self._in_piece:
            pieces.append(lines.pop(0))
            self._in_piece = False
        if len(self._rest) > ENTRY_BYTES_MAX or self._in_piece:
            while len(self._rest) > PIECE_BYTES:
                pieces.append(self._rest[:PIECE_BYTES])
                self._rest, self._in_piece = self._rest[PIECE_BYTES:], True
        return [line for line in lines if line], pieces


def _checkpoint(cursor: str) -> FileCheckpoint:
    return FileCheckpoint(source=JOURNAL_SOURCE, path=cursor, start=0, offset=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPorts:
    """Where entries go, where a cursor without entries is stored, and the clock."""

    put: Callable[[RecordBlock], Awaitable[None]]
    save: Callable[[FileCheckpoint], Awaitable[None]]
    clock: Clock


class JournalInput:
    """Reads the journal until `stop`, or with `once` to its end."""

    def __init__(self, cursor: str, ports: JournalPorts, *, only_new: bool, once: bool) -> None:
        """Begin after a cursor; `only_new` leaves out what is older if there is none."""
        self._cursor = cursor
        self._ports = ports
        self._skip_before_us = ports.clock.now_ns() // _NS_PER_US if only_new and not cursor else 0
        self._once = once
        self._has_started = False

    async def run(self, stop: asyncio.Event) -> None:
        """Read entries, and start `journalctl` again whenever it ends."""
        again_s = AGAIN_S[0]
        while not stop.is_set():
            before = self._cursor
            async with self._started() as process:
                reading = asyncio.create_task(self._read(process))
                stopping = asyncio.create_task(stop.wait())
                try:
                    await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    stopping.cancel()
                    reading.cancel()
                    await asyncio.gather(reading, stopping, return_exceptions=True)
                if not reading.cancelled():
                    reading.result()
            if stop.is_set() or (self._once and process.returncode == 0):
                return
            if self._once:
                raise BadUsage(f"journalctl failed, exit_code=`{process.returncode}`")
            again_s = AGAIN_S[0] if self._cursor != before else min(2 * again_s, AGAIN_S[1])
            _log.warning("journalctl_ended", exit_code=process.returncode, retry_s=again_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), again_s)

    @contextlib.asynccontextmanager
    async def _started(self) -> AsyncIterator[Process]:
        command = journal_command(
            self._cursor,
            follow=not self._once,
            only_new=bool(self._skip_before_us),
            since_s=self._skip_before_us // _US_PER_S if self._has_started else 0,
        )
        self._has_started = True  # the last entry may then be later than other new ones
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
            )
        except OSError as error:
            raise BadUsage(
                f"cannot run journalctl: {error.strerror}; run the agent on a machine with systemd,"
                " or without --journal"
            ) from error
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            # A pipe that is full is not watched, and asyncio waits for its end.
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            while await process.stdout.read(_READ_BYTES):
                pass
            await process.wait()

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        lines = EntryLines()
        while data := await process.stdout.read(_READ_BYTES):
            whole, pieces = lines.feed(data)
            if whole or pieces:
                await self._send(whole, pieces)
        await process.wait()

    async def _send(self, lines: Sequence[bytes], pieces: Sequence[bytes]) -> None:
        now_ns = self._ports.clock.now_ns()
        block, cursor = await asyncio.to_thread(self._block, lines, pieces, now_ns)
        if block is not None:
            await self._ports.put(block)
        elif cursor:
            await self._ports.save(_checkpoint(cursor))
        self._cursor = cursor or self._cursor
        if cursor:
            self._skip_before_us = 0

    def _block(
        self, lines: Sequence[bytes], pieces: Sequence[bytes], now_ns: UnixNs
    ) -> tuple[RecordBlock | None, str]:
        found = read_journal_entries(lines, arrived_ns=now_ns)
        records = [
            LogRecord(
                ts_ns=now_ns,
                body=one.decode(errors="surrogateescape"),
                attributes={ERROR_ATTRIBUTE: "entry is too large", CONTINUES: "true"},
            )
            for one in pieces
        ] + [one for one in found.records if one.ts_ns >= self._skip_before_us * _NS_PER_US]
        if not records:
            return None, found.cursor
        columns = logs_from_rows(records, Tally())
        return RecordBlock(
            columns=columns,
            cost_bytes=cost_bytes(columns),
            checkpoints=(_checkpoint(found.cursor),) if found.cursor else (),
            may_wait=True,
        ), found.cursor
