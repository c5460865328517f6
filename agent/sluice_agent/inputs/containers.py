r"""The lines that container runtimes write around those of programs, and what paths state; pure.

- CRI: `<RFC 3339 time> stdout|stderr P|F <text>`. `P` is a part of a longer line.
- Docker's `json-file`: `{"log":"<text>\n","stream":"stdout","time":"<RFC 3339 time>"}`. A text
  without a line end is a part of a longer line.

Both streams are in one file. Parts are joined by stream, and then lines are grouped by stream
(`grouping`), so a cut may only be where no line and no group of any stream is incomplete.

Source: Kubernetes' design of the container runtime interface (`kubelet-cri-logging.md`), kubelet's
names of log files; Moby, `daemon/logger/jsonfilelog`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from sluice_agent.inputs.grouping import Alone, Group, LineGrouping, may_continue
from sluice_agent.inputs.timestamps import parse_timestamps
from sluice_protocol.errors import UNREADABLE_JSON
from sluice_protocol.records import text_column
from sluice_protocol.times import read_time
from sluice_protocol.units import NS_PER_S, UnixNs

STREAM_ATTRIBUTE: Final = "log.iostream"
PART_BYTES_MAX: Final = 1024 * 1024
PARTS_MAX: Final = 1000
"""A line of more parts, or longer, becomes several records with `sluice.continues`."""
GAP_NS: Final = NS_PER_S
GAP_LINES: Final = 64
"""Lines of the other stream end a group of a stream if they are this much later, or so many."""
_FAR_LINES: Final = 2 * (GAP_LINES + 1)
"""A group of one line is complete before this many lines, if none of them may continue another: at
most one further line may join it, and each of both is open for at most `GAP_LINES`.
"""
PART_GAP_NS: Final = 3 * NS_PER_S
_CRI: Final = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(?:Z|[+-][0-9:]{4,5})) (stdout|stderr) ([PF]) ?"
)
_USUAL: Final = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
    rb"(?:Z|[+-][0-9]{2}:[0-9]{2})) (stdout|stderr) ([PF]) ?"
)
"""A line whose time is in the form that runtimes write."""
_NO_TIME: Final = UnixNs(-1)
_STREAMS: Final = {b"stdout": "stdout", b"stderr": "stderr"}
_OTHER: Final = ""
"""The stream of lines that have no wrapper."""


class WrappedLine(NamedTuple):
    """A line of a program, or a part of one, as its runtime wrote it.

    Attributes:
        ts_ns: Unix ns; None without a wrapper that can be read.
        stream: `stdout`, `stderr`, or empty without a wrapper.
        is_part: The line continues in the next one of its stream.
        attributes: Further fields of the runtime.
    """

    text: bytes
    ts_ns: int | None
    stream: str
    is_part: bool = False
    attributes: tuple[tuple[str, str], ...] = ()


Unwrap = Callable[[bytes], WrappedLine | None]
Matches = Callable[[Sequence[bytes]], npt.NDArray[np.bool_]]
"""Returns for each line whether the pattern that begins a record is in it."""


def unwrap_cri(line: bytes) -> WrappedLine | None:
    """Return the text in a line of CRI; None if the line has another form."""
    found = _CRI.match(line)
    if found is None:
        return None
    ts_ns = read_time(found[1].decode(), zone=None)
    if ts_ns is None:
        return None
    return WrappedLine(line[found.end() :], ts_ns, found[2].decode(), found[3] == b"P")


def _unwrap_all(lines: Sequence[bytes], unwrap: Unwrap) -> list[WrappedLine]:
    """Return the text in each line; one that `unwrap` cannot read is text without a wrapper."""
    usual = list(map(_USUAL.match, lines)) if unwrap is unwrap_cri else [None] * len(lines)
    texts = text_column("time", [one[1] + b" " for one in usual if one is not None])
    times = iter(parse_timestamps(texts, arrived_ns=_NO_TIME, zone=None).tolist())
    found: list[WrappedLine] = []
    for line, one in zip(lines, usual, strict=True):
        if one is not None and (ts_ns := next(times)) != _NO_TIME:
            stream, is_part = _STREAMS[one[2]], one[3] == b"P"
            found.append(WrappedLine(line[one.end() :], ts_ns, stream, is_part))
        else:
            found.append(unwrap(line) or WrappedLine(line, None, _OTHER))
    return found


class _DockerLine(msgspec.Struct):
    log: str
    stream: str
    time: str
    attrs: dict[str, str] = {}


_DOCKER: Final = msgspec.json.Decoder(_DockerLine)
_DOCKER_START: Final = b'{"log":"'


def unwrap_docker(line: bytes) -> WrappedLine | None:
    """Return the text in a line of Docker's `json-file`; None if the line has another form."""
    if not line.startswith(_DOCKER_START):
        return None
    try:
        found = _DOCKER.decode(line)
        text = found.log.encode()
    except (*UNREADABLE_JSON, UnicodeEncodeError):
        return None
    ts_ns = read_time(found.time, zone=None)
    if ts_ns is None or found.stream not in ("stdout", "stderr"):
        return None
    whole = text.removesuffix(b"\n")
    attributes = tuple(found.attrs.items())
    return WrappedLine(whole, ts_ns, found.stream, len(whole) == len(text), attributes)


class WrappedGroup(NamedTuple):
    """Lines of one stream that are one record.

    Attributes:
        first: The number of the first line of the file that it has a part of.
        last: That of the last.
        text: The lines of the program, joined by line feeds.
        continues: The line continues in the next record, because its parts exceed a bound or their
            end was not written.
    """

    first: int
    last: int
    text: bytes
    line: WrappedLine
    continues: bool = False


@dataclass(slots=True)
class _Stream:
    """The open line and the open group of one stream."""

    grouping: LineGrouping
    parts: list[tuple[int, WrappedLine]] = field(default_factory=list)
    parts_bytes: int = 0
    wholes: list[WrappedGroup] = field(default_factory=list)
    matches: Matches | None = None
    last: int = 0
    last_ns: int = 0

    def first_open(self) -> int | None:
        """Return the number of the first line that is not complete; None if there is none."""
        if self.wholes:
            return self.wholes[0].first
        return self.parts[0][0] if self.parts else None

    def add(self, number: int, line: WrappedLine) -> list[WrappedGroup]:
        self.last, self.last_ns = number, line.ts_ns or self.last_ns
        if not self.parts and not line.is_part:
            return self._add_whole(WrappedGroup(number, number, line.text, line))
        self.parts.append((number, line))
        self.parts_bytes += len(line.text)
        exceeds = self.parts_bytes >= PART_BYTES_MAX or len(self.parts) >= PARTS_MAX
        if line.is_part and not exceeds:
            return []
        return self._join(continues=line.is_part)

    @property
    def is_ordinary(self) -> bool:
        """Return True if what is open is at most a single line that begins no trace."""
        return not self.parts and self.grouping.is_ordinary

    def is_overdue(self, number: int, ts_ns: int) -> bool:
        """Return True if a later line of another stream ends what is open."""
        if self.parts:
            late = ts_ns - self.last_ns > PART_GAP_NS
            return late or number - self.last > PARTS_MAX
        return bool(self.wholes) and (
            ts_ns - self.last_ns > GAP_NS or number - self.last > GAP_LINES
        )

    def end(self) -> list[WrappedGroup]:
        """Return everything that is open."""
        found = self._join(continues=True) if self.parts else []
        return found + self._take(self.grouping.end())

    def _join(self, *, continues: bool) -> list[WrappedGroup]:
        parts, self.parts, self.parts_bytes = self.parts, [], 0
        text = b"".join(line.text for _, line in parts)
        whole = WrappedGroup(parts[0][0], parts[-1][0], text, parts[0][1], continues)
        found = self._add_whole(whole)
        return found + self._take(self.grouping.end()) if continues else found

    def _add_whole(self, whole: WrappedGroup) -> list[WrappedGroup]:
        """Add a line that is whole; return the groups that end before it."""
        starts = None if self.matches is None else bool(self.matches([whole.text])[0])
        found = self._take(self.grouping.add(whole.first, whole.text, starts=starts))
        self.wholes.append(whole)
        return found

    def _take(self, groups: list[Group]) -> list[WrappedGroup]:
        """Remove lines that are groups, each given by the numbers of its first and last line."""
        if len(groups) == len(self.wholes):
            found, self.wholes = self.wholes, []
            return found
        found = []
        for _, last in groups:
            size = next(at for at, one in enumerate(self.wholes, 1) if one.first == last)
            wholes, self.wholes = self.wholes[:size], self.wholes[size:]
            text = b"\n".join(one.text for one in wholes)
            first, final = wholes[0], wholes[-1]
            found.append(WrappedGroup(first.first, final.last, text, first.line, final.continues))
        return found


@dataclass(frozen=True, slots=True)
class WrappedGroups:
    """The groups of some lines of a file.

    Attributes:
        groups: Those that are complete and before `open_from`, in the order of their first line.
        open_from: The number of the first line that must be read again.
        is_ordinary: What is open are single lines that begin no trace.
    """

    groups: list[WrappedGroup]
    open_from: int
    is_ordinary: bool


def group_wrapped(
    lines: Sequence[bytes],
    unwrap: Unwrap,
    *,
    alone: Alone = None,
    alone_from: int = 0,
    matches: Matches | None = None,
    complete: bool = False,
) -> WrappedGroups:
    """Return the groups of lines of a container's file.

    Lines that `unwrap` cannot read are a stream of their own. `alone`, from a line on, and
    `matches` are those of `group_lines`. What is open at the end is closed if the lines are
    `complete`. Lines that are far from all that a rule can connect are not visited.
    """
    streams: dict[str, _Stream] = {}
    found: list[WrappedGroup] = []
    unwrapped = _unwrap_all(lines, unwrap)
    visits = _Visits(unwrapped, is_every=matches is not None)
    number = 0
    while number < len(lines):
        line = unwrapped[number]
        if line.stream not in streams:
            streams[line.stream] = _Stream(LineGrouping(alone, alone_from), matches=matches)
        found += streams[line.stream].add(number, line)
        found += _overdue(streams, number, line)
        number += 1
        until = visits.next_after(number)
        if until > number and all(one.is_ordinary for one in streams.values()):
            found += [group for one in streams.values() for group in one.end()]
            streams = {}
            between = zip(range(number, until), unwrapped[number:until], strict=True)
            found += [WrappedGroup(at, at, line.text, line) for at, line in between]
            number = until
    if complete:
        found += [group for stream in streams.values() for group in stream.end()]
    opened = [one for stream in streams.values() if (one := stream.first_open()) is not None]
    ordinary = all(one.is_ordinary for one in streams.values())
    open_from = _cut(found, min(opened, default=len(lines)))
    kept = sorted((one for one in found if one.last < open_from), key=lambda one: one.first)
    return WrappedGroups(kept, open_from, ordinary)


def _overdue(streams: Mapping[str, _Stream], number: int, line: WrappedLine) -> list[WrappedGroup]:
    """Return what a line ends in the other streams."""
    if len(streams) == 1 or line.ts_ns is None:
        return []
    others = [one for name, one in streams.items() if name != line.stream]
    late = [one for one in others if one.is_overdue(number, line.ts_ns)]
    return [group for one in late for group in one.end()]


class _Visits:
    """The lines that a rule may connect with others; the lines between them are a group each."""

    def __init__(self, lines: Sequence[WrappedLine], *, is_every: bool) -> None:
        """Find the lines that are parts, have no wrapper, or may continue another."""
        self._special = [
            number
            for number, line in enumerate(lines)
            if is_every or line.is_part or not line.stream or may_continue(line.text)
        ]
        self._special.append(len(lines))
        self._at = 0

    def next_after(self, number: int) -> int:
        """Return the next line that must be visited once only single lines are open."""
        while self._special[self._at] < number:
            self._at += 1
        return max(number, self._special[self._at] - _FAR_LINES)


def _cut(groups: Sequence[WrappedGroup], wanted: int) -> int:
    """Return the last place up to `wanted` that no group spans."""
    spans = [one for one in groups if one.first < one.last]
    for one in sorted(spans, key=lambda one: one.last, reverse=True):
        if one.first < wanted <= one.last:
            wanted = one.first
    return wanted


_POD_PATH: Final = re.compile(
    r".*/pods/(?P<namespace>[^/_]+)_(?P<pod>[^/_]+)_(?P<uid>[^/_]+)/(?P<container>[^/]+)/"
    r"(?P<restarts>[0-9]+)\.log(?:\.[0-9-]+)?"
)
_CONTAINER_PATH: Final = re.compile(
    r".*/containers/(?P<pod>[^/_]+)_(?P<namespace>[^/_]+)_(?P<container>[^/]+)-"
    r"(?P<id>[0-9a-f]{64})\.log"
)
_POD_ATTRIBUTES: Final = {
    "namespace": "k8s.namespace.name",
    "pod": "k8s.pod.name",
    "uid": "k8s.pod.uid",
    "container": "k8s.container.name",
    "restarts": "k8s.container.restart_count",
    "id": "container.id",
}


def pod_attributes(*paths: str) -> dict[str, str]:
    """Return what the names that kubelet gives log files state about their pod.

    The first of the `paths` that states a field counts: usually the path, and the file that it
    leads to.
    """
    found: dict[str, str] = {}
    for path in paths:
        match = _POD_PATH.fullmatch(path) or _CONTAINER_PATH.fullmatch(path)
        if match is not None:
            for name, value in match.groupdict().items():
                found.setdefault(_POD_ATTRIBUTES[name], value)
    return found
