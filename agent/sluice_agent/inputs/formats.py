"""Read the records of a file in the format that its program writes.

The wrapper of a container runtime is removed first (`containers`), lines are grouped (`grouping`),
and each group becomes a record, of text or of another form (`structured`).

With `auto`, the first of the first lines that has a form decides for the whole file, and for the
lines inside of a wrapper likewise. Lines before it are text in any case, so the decision is the
same however many lines are known, and after a restart. A line of another form is text.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Final, NamedTuple

import numpy as np

from sluice_agent.inputs.columns import CONTINUES, Newlines, find_newlines, logs_from_block
from sluice_agent.inputs.containers import (
    Matches,
    Unwrap,
    WrappedGroup,
    WrappedLine,
    group_wrapped,
    unwrap_cri,
    unwrap_docker,
)
from sluice_agent.inputs.grouping import Alone, group_lines
from sluice_agent.settings import Format, Zone
from sluice_protocol.columns import LogColumns
from sluice_protocol.errors import BadUsage
from sluice_protocol.units import UnixNs

HEAD_BYTES: Final = 64 * 1024
HEAD_LINES: Final = 16
"""Lines that are not empty, within the first bytes of a file, of which the first with a form
decides."""
_OBJECT: Final = re.compile(rb"\{")
_PAIRS: Final = re.compile(rb"[A-Za-z_@][0-9A-Za-z_@./-]{0,255}=")
_PRIORITY: Final = re.compile(rb"<[0-9]{1,3}>")
_ALONE: Final = {Format.JSON: _OBJECT, Format.LOGFMT: _PAIRS, Format.SYSLOG: _PRIORITY}
_UNWRAP: Final[dict[Format, Unwrap]] = {Format.CRI: unwrap_cri, Format.DOCKER: unwrap_docker}


# -- recognition -------------------------------------------------------------------------


def form_of(line: bytes) -> Format | None:
    """Return the form of a line; None if it is text."""
    if unwrap_cri(line) is not None:
        return Format.CRI
    if unwrap_docker(line) is not None:
        return Format.DOCKER
    if not line.startswith((b"{", b"<")) and not _PAIRS.match(line):
        return None
    # The decoders are as large as the rest of the agent.
    from sluice_agent.inputs.structured import form_of_record  # noqa: PLC0415 - rarely needed

    return form_of_record(line)


class Recognized(NamedTuple):
    """The format of a file.

    Attributes:
        outer: That of its lines; None if it is not decided yet.
        inner: That of the lines inside of a wrapper; without a wrapper, the same.
        at: The offset of the line that decided `inner`. Lines before it are text.
    """

    outer: Format | None
    inner: Format | None
    at: int = 0


def recognize(head: bytes, wanted: Format = Format.AUTO) -> Recognized:
    """Return the format of a file by its first bytes.

    A line without its end is ignored, as it may grow. `wanted` may be the format of the wrapper.
    """
    lines: list[tuple[int, bytes]] = []
    at = 0
    for line in head[: head.rfind(b"\n") + 1].split(b"\n"):
        if line.strip():
            lines.append((at, line))
        at += len(line) + 1
    del lines[HEAD_LINES:]
    otherwise = Format.TEXT if len(lines) == HEAD_LINES or len(head) >= HEAD_BYTES else None
    outer, at = (wanted, 0) if wanted in _UNWRAP else _first_form(lines, otherwise)
    if outer is None or outer not in _UNWRAP:
        return Recognized(outer, outer, at)
    inside = [pair for pair in _inside(lines, _UNWRAP[outer]) if pair[1].strip()]
    inner, at = _first_form(inside, otherwise)
    return Recognized(outer, Format.TEXT if inner in _UNWRAP else inner, at)


def _inside(lines: Iterable[tuple[int, bytes]], unwrap: Unwrap) -> Iterator[tuple[int, bytes]]:
    """Yield each whole line in a wrapper, with the offset of its first part."""
    parts: dict[str, tuple[int, bytes]] = {}
    for at, line in lines:
        found = unwrap(line)
        if found is None:
            continue
        first_at, text = parts.pop(found.stream, (at, b""))
        whole = (first_at, text + found.text)
        if found.is_part:
            parts[found.stream] = whole
        else:
            yield whole


def _first_form(
    lines: Iterable[tuple[int, bytes]], otherwise: Format | None
) -> tuple[Format | None, int]:
    found = ((form, at) for at, line in lines if (form := form_of(line)) is not None)
    return next(found, (otherwise, 0))


def pattern_matches(pattern: str) -> Matches | None:
    """Return whether a regex is in each of some lines; None for no regex.

    Raises:
        BadUsage: The regex has an error, or the extra with its library is missing.
    """
    if not pattern:
        return None
    try:
        # By its name, because the agent does not depend on the library.
        patterns = import_module("sluice_doors.arrow.patterns")
    except ImportError as error:
        raise BadUsage("multiline_start needs the extra `doors`") from error
    try:
        matches: Matches = patterns.compile_pattern(pattern)
    except ValueError as error:
        raise BadUsage(f"regex cannot be read: {error}, multiline_start=`{pattern}`") from error
    return matches


# -- reading -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """The next lines of a file.

    Attributes:
        data: Whole lines in UTF-8; at the end of the file the newline of the last is optional.
        continues: It is a piece of a line that is too long.
        newlines: The offsets of the newlines in `data`, if they are known.
        has_more: The file contains further lines.
        is_ended: What follows continues no line: a hole, or a line that is too long.
    """

    data: bytes
    continues: bool = False
    newlines: Newlines | None = None
    has_more: bool = False
    is_ended: bool = False


class ReadRecords(NamedTuple):
    """The records at the start of a block, and the bytes that they were."""

    columns: LogColumns
    data: bytes


class OpenRecords(NamedTuple):
    """No record of a block is complete; `is_ordinary` if they are single lines without a trace."""

    is_ordinary: bool


class RecordReader:
    """Reads the records of one file."""

    def __init__(
        self, wanted: Format = Format.AUTO, *, zone: Zone = None, matches: Matches | None = None
    ) -> None:
        """Read a format; `matches` decides which lines of text begin a record."""
        self._wanted = wanted
        self._zone = zone
        self._matches = matches
        self.forget()

    def forget(self) -> None:
        """Decide the format again: the file has other content."""
        wanted = self._wanted
        is_known = wanted is not Format.AUTO and wanted not in _UNWRAP
        self._found = Recognized(wanted, wanted) if is_known else Recognized(None, None)

    @property
    def is_decided(self) -> bool:
        """Return True if the format of the file, and that inside of a wrapper, are known."""
        return self._found.inner is not None

    def decide(self, head: bytes, start: int = 0) -> None:
        """Decide the format as far as the first bytes of the file allow; they begin at `start`."""
        found = recognize(head, self._wanted)
        self._found = found._replace(at=start + found.at)

    def read(
        self,
        block: LineBlock,
        shared: Mapping[str, str],
        *,
        offset: int,
        arrived_ns: UnixNs,
        complete: bool,
        only_first: bool = False,
    ) -> ReadRecords | OpenRecords:
        """Return the records at the start of a block.

        `shared` are attributes of each, and `offset` is where the block begins in the file. The
        last records are left for the next block unless the lines are `complete`. With `only_first`
        the others are left too.
        """
        if block.continues:
            return ReadRecords(self._piece(block, shared, arrived_ns), block.data)
        newlines = find_newlines(block.data) if block.newlines is None else block.newlines
        lines = newlines
        if not len(lines) or int(lines[-1]) + 1 < len(block.data):
            lines = np.append(lines, len(block.data))
        text = _Lines(block.data, lines, shared, arrived_ns)
        alone = _ALONE.get(self._found.inner or Format.TEXT)
        # Lines from this number on may have the form.
        form_from = int(np.searchsorted(lines, self._found.at - offset)) if alone else len(lines)
        if self._found.outer in _UNWRAP:
            return self._read_wrapped(text, alone, form_from, complete=complete)
        starts = None if self._matches is None else self._matches(text.texts())
        groups = group_lines(
            block.data, lines, alone=alone, alone_from=form_from, starts=starts, complete=complete
        )
        ends = groups.ends[:1] if only_first else groups.ends
        count = int(ends[-1]) + 1 if len(ends) else 0
        if not count:
            return OpenRecords(groups.is_ordinary)
        taken = block.data[: text.end_of(count)]
        if form_from < count:
            columns = self._structured(text.groups(ends), form_from, text)
        else:
            columns = logs_from_block(
                taken,
                arrived_ns=arrived_ns,
                zone=self._zone,
                shared=shared,
                newlines=newlines[:count],
                ends=None if len(ends) == count else ends[ends < len(newlines)],
            )
        return ReadRecords(columns, taken)

    def _piece(self, block: LineBlock, shared: Mapping[str, str], arrived_ns: UnixNs) -> LogColumns:
        return logs_from_block(
            block.data, arrived_ns=arrived_ns, zone=self._zone, shared={**shared, **CONTINUES}
        )

    def _read_wrapped(
        self, text: "_Lines", alone: Alone, form_from: int, *, complete: bool
    ) -> ReadRecords | OpenRecords:
        found = group_wrapped(
            text.texts(),
            _UNWRAP[self._found.outer or Format.CRI],
            alone=alone,
            alone_from=form_from,
            matches=self._matches,
            complete=complete,
        )
        if not found.groups:
            return OpenRecords(found.is_ordinary)
        columns = self._structured(found.groups, form_from, text)
        return ReadRecords(columns, text.data[: text.end_of(found.open_from)])

    def _structured(self, groups: list[WrappedGroup], form_from: int, text: "_Lines") -> LogColumns:
        from sluice_agent.inputs.structured import RecordColumns  # noqa: PLC0415 - rarely needed

        stated = None if self._wanted in (Format.AUTO, Format.TEXT) else self._wanted
        columns = RecordColumns(text.shared, text.arrived_ns, self._zone, stated)
        return columns.of(groups, self._found.inner or Format.TEXT, form_from)


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines of a block; `lines` has the offset at which each ends."""

    data: bytes
    lines: Newlines
    shared: Mapping[str, str]
    arrived_ns: UnixNs

    def end_of(self, count: int) -> int:
        """Return the size of the first lines, bytes."""
        return min(int(self.lines[count - 1]) + 1, len(self.data))

    def texts(self) -> list[bytes]:
        """Return the lines without their ends."""
        return self._between(np.arange(len(self.lines)))

    def groups(self, ends: Newlines) -> list[WrappedGroup]:
        """Return the lines up to each of the `ends` as groups."""
        firsts = [0, *(ends[:-1] + 1).tolist()]
        rows = zip(firsts, ends.tolist(), self._between(ends), strict=True)
        return [WrappedGroup(a, b, text, WrappedLine(text, None, "")) for a, b, text in rows]

    def _between(self, ends: Newlines) -> list[bytes]:
        if b"\r" not in self.data:
            places = self.lines[ends].tolist()
            starts = [0, *(place + 1 for place in places[:-1])]
            return [self.data[a:b] for a, b in zip(starts, places, strict=True)]
        edges = [0, *(self.lines[ends] + 1).tolist()]
        return [
            self.data[a:b].removesuffix(b"\n").removesuffix(b"\r").replace(b"\r\n", b"\n")
            for a, b in itertools.pairwise(edges)
        ]
