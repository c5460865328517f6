"""Decide which lines of a program are one record: stack traces and other multi-line text; pure.

A state follows from the lines of one group alone, so lines that are read again from the start of
their group lead to the same groups, however the input was cut into reads.

A line continues the one before it if it is indented, or closes brackets, and in traces:

- Java: `Caused by:` and `Suppressed:` after frames. .NET: `--- End of stack trace …`.
- Python: the line of the exception after the frames, and chained exceptions.
- Node: the error after the marked line of code.
- Go: everything of a crash, from `panic:` or `fatal error:` to the last frame.

A trace also continues the line before it if that one begins with a time or a level, as loggers
write them. Every regex is anchored, and has no alternatives that match the same text twice, so a
hostile line takes linear time.

Sources: Fluent Bit's multiline parsers for `java`, `go` and `python`; `Throwable.printStackTrace`,
Python's `traceback`, Go's `runtime/panic.go`, Node's `lib/internal/errors.js`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import numpy as np
import numpy.typing as npt

from sluice_agent.inputs.columns import Newlines

GROUP_AGE_S: Final = 10.0
"""A group that still grows is complete after this time."""
GROUP_LINES_MAX: Final = 1000
GROUP_BYTES_MAX: Final = 1024 * 1024
"""A longer group becomes several records."""
LINE_WAIT_S: Final = 0.5
GROUP_WAIT_S: Final = 3.0
"""How long the last line, or a trace or part at the end, waits for a line that continues it."""
Group = tuple[int, int]
"""The numbers of the first and the last line of a group."""
Alone = re.Pattern[bytes] | None
"""Lines that begin like this are records without continuation, for example objects of JSON."""
_HEAD_BYTES: Final = 512
"""No rule reads more of a line than this, apart from its last byte."""


class State(Enum):
    """What the last line of a group was."""

    ALONE = auto()
    PLAIN = auto()
    EVENT = auto()
    EXCEPTION = auto()
    BODY = auto()
    CARET = auto()
    CARET_BLANK = auto()
    TRACEBACK = auto()
    PYTHON_FRAMES = auto()
    PYTHON_END = auto()
    PYTHON_BLANK = auto()
    PYTHON_CHAIN = auto()
    GO = auto()


_EVENT: Final = re.compile(
    rb"\[?(?:[12][0-9]{3}[-/][01][0-9][-/][0-3][0-9][T ]|[0-2][0-9]:[0-5][0-9]:[0-5][0-9]"
    rb"|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ 0-9][0-9] |[IWEF][0-9]{4} "
    rb"|(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL|SEVERE)(?![0-9A-Za-z_]))"
)
_TRACEBACK: Final = b"Traceback (most recent call last):"
_NAME: Final = re.compile(rb"[A-Za-z_$][0-9A-Za-z_$.]{0,200}")
_EXCEPTIONS: Final = (b"Exception", b"Error", b"Throwable")
_GOROUTINE: Final = re.compile(rb"goroutine [0-9]{1,12} \[")
_CAUSE: Final = re.compile(rb"(?:Caused by|Suppressed): |--- End of ")
_CLOSING: Final = re.compile(rb"[\])}]{1,8}[;,]?\s*\Z")
_CARET: Final = re.compile(rb"[ \t]+\^[\^~]*\s*\Z")
_CHAIN: Final = (
    b"During handling of the above exception",
    b"The above exception was the direct cause",
)
_INDENTS: Final = (b" ", b"\t")
_GO_STARTS: Final = (b"panic: ", b"fatal error: ", b"goroutine ")
_GO_LINE: Final = re.compile(
    rb"goroutine [0-9]{1,12} \[|\[signal |created by |exit status [0-9]|runtime stack:"
    rb"|[^\s(]{1,400}\(|r[0-9a-z]{1,5} +0x|[cfg]s +0x"
)
_TRIGGER_STARTS: Final = (*_INDENTS, *_GO_STARTS)


def _is_exception(line: bytes) -> bool:
    """Return True if a line begins with the name of an exception."""
    found = _NAME.match(line)
    return found is not None and found[0].endswith(_EXCEPTIONS)


def first_state(line: bytes, alone: Alone) -> State:
    """Return the state after the first line of a group."""
    if alone is not None and alone.match(line):
        return State.ALONE
    if line.startswith(_INDENTS):
        return State.BODY
    if line.startswith(_GO_STARTS):
        return State.GO
    if _TRACEBACK in line[:_HEAD_BYTES]:
        return State.TRACEBACK
    if _EVENT.match(line):
        return State.EVENT
    return State.EXCEPTION if _is_exception(line) else State.PLAIN


def next_state(state: State, line: bytes, alone: Alone) -> State | None:
    """Return the state after a further line; None if the line begins another group."""
    if state is State.ALONE or (alone is not None and alone.match(line)):
        return None
    if line.startswith(_INDENTS):
        return _after_indented(state, line)
    if _EVENT.match(line):
        return None
    for fits, after in _LINES_AFTER.get(state, ()):
        if fits(line):
            return after
    return None


def _after_indented(state: State, line: bytes) -> State:
    match state:
        case State.GO | State.PYTHON_END:
            return state
        case State.TRACEBACK | State.PYTHON_FRAMES:
            return State.PYTHON_FRAMES
        case _:
            return State.CARET if _CARET.match(line) else State.BODY


def _is_blank(line: bytes) -> bool:
    return line in (b"", b"\r")


def _is_of_go(line: bytes) -> bool:
    return _is_blank(line) or _GO_LINE.match(line) is not None


def _is_of_trace(line: bytes) -> bool:
    return _CAUSE.match(line) is not None or _CLOSING.match(line) is not None


_LINES_AFTER: Final[dict[State, Sequence[tuple[Callable[[bytes], object], State]]]] = {
    State.PLAIN: [(_GOROUTINE.match, State.GO)],
    State.EVENT: [(_GOROUTINE.match, State.GO)],
    State.GO: [(_is_of_go, State.GO)],
    State.BODY: [(_is_of_trace, State.BODY)],
    State.CARET: [(_is_blank, State.CARET_BLANK)],
    State.CARET_BLANK: [(_is_exception, State.BODY)],
    State.PYTHON_FRAMES: [(lambda line: not _is_blank(line), State.PYTHON_END)],
    State.PYTHON_END: [(_is_blank, State.PYTHON_BLANK)],
    State.PYTHON_BLANK: [(lambda line: line.startswith(_CHAIN), State.PYTHON_CHAIN)],
    State.PYTHON_CHAIN: [
        (_is_blank, State.PYTHON_CHAIN),
        (lambda line: line.startswith(_TRACEBACK), State.TRACEBACK),
    ],
}
"""The lines that continue a group although they are not indented, and the state after them."""


class LineGrouping:
    """The open group of one stream of lines.

    A trace that follows a line with a time or level is `_lead`-ed by it: both are one group as soon
    as the trace has a second line, and two groups otherwise.

    Attributes:
        start: The number of the first line of the open group; -1 if there is none.
    """

    def __init__(self, alone: Alone = None, alone_from: int = 0) -> None:
        """Begin without a line; no line continues lines that are `alone`, from a number on."""
        self.start = -1
        self.lines = 0
        self._alone = alone
        self._alone_from = alone_from
        self._state = State.ALONE
        self._size_bytes = 0
        self._lead = False
        self._last = -1

    @property
    def is_ordinary(self) -> bool:
        """Return True if the group is a single line that does not begin a trace."""
        return self.lines <= 1 and self._state in (State.ALONE, State.PLAIN, State.EVENT)

    def add(self, number: int, line: bytes, *, starts: bool | None = None) -> list[Group]:
        """Add a line; return the groups that end before it.

        Numbers increase by one or more: lines of another stream may be between two of them.
        `starts` decides in place of the rules whether the line begins a group.
        """
        alone = self._alone if number >= self._alone_from else None
        after = self._after(line, alone, starts=starts) if self._fits(line) else None
        if after is not None:
            self._state, self._lead = after, False
            self._extend(number, line)
            return []
        state = first_state(line, alone)
        leads = state in (State.EXCEPTION, State.TRACEBACK) and not _EVENT.match(line)
        if (
            starts is None
            and leads
            and self.lines == 1
            and self._state is State.EVENT
            and self._fits(line)
        ):
            self._state, self._lead = state, True
            self._extend(number, line)
            return []
        ended = self.end()
        self.start, self.lines, self._size_bytes = number, 0, 0
        self._state = state
        self._extend(number, line)
        return ended

    def _after(self, line: bytes, alone: Alone, *, starts: bool | None) -> State | None:
        if starts is None:
            return next_state(self._state, line, alone)
        is_alone = alone is not None and alone.match(line) is not None
        return None if starts or is_alone or self._state is State.ALONE else State.BODY

    def end(self) -> list[Group]:
        """Return what is open as one group, or two, and begin again."""
        start, last, split = self.start, self._last, self._lead
        self.start, self.lines, self._state, self._lead = -1, 0, State.ALONE, False
        if start < 0:
            return []
        return [(start, start), (last, last)] if split else [(start, last)]

    def _fits(self, line: bytes) -> bool:
        fits = self._size_bytes + len(line) + 1 <= GROUP_BYTES_MAX
        return self.start >= 0 and self.lines < GROUP_LINES_MAX and fits

    def _extend(self, number: int, line: bytes) -> None:
        self._last = number
        self.lines += 1
        self._size_bytes += len(line) + 1


@dataclass(frozen=True, slots=True)
class LineGroups:
    """The groups of some lines of one stream.

    Attributes:
        ends: The number of the last line of each group that is complete.
        open_from: The number of the first line that is in none of them.
        is_ordinary: The open lines are one that does not begin a trace.
    """

    ends: npt.NDArray[np.intp]
    open_from: int
    is_ordinary: bool = True


def group_lines(
    data: bytes,
    newlines: Newlines,
    *,
    alone: Alone = None,
    alone_from: int = 0,
    starts: npt.NDArray[np.bool_] | None = None,
    complete: bool = False,
) -> LineGroups:
    """Return the groups of lines; `newlines` has the offset at which each line ends.

    `starts` has for each line whether it begins a group; without it, the rules decide. Lines that
    are `alone`, from a number on, are groups without a further line. The last group is open unless
    the lines are `complete`. Lines that no rule can connect are not visited:
    between two triggers each line is a group.
    """
    count = len(newlines)
    if not count:
        return LineGroups(newlines, 0)
    first = np.concatenate(([0], newlines[:-1] + 1))
    triggers = _triggers(data, first) if starts is None else np.flatnonzero(~starts).tolist()
    is_end = np.ones(count, np.bool_)
    grouping = LineGrouping()
    at = 0
    for trigger in (*triggers, count - 1):
        if trigger < at:
            continue
        # A rule connects a line with at most two before it, unless they are in a group already.
        grouping, at = LineGrouping(alone, alone_from), max(at, trigger - 2)
        while at < count:
            line = data[int(first[at]) : int(newlines[at])]
            _mark(
                is_end, grouping.add(at, line, starts=None if starts is None else bool(starts[at]))
            )
            if at > trigger and grouping.start == at:
                break
            at += 1
    open_from, is_ordinary = grouping.start, grouping.is_ordinary
    if complete:
        _mark(is_end, grouping.end())
        open_from = count
    return LineGroups(np.flatnonzero(is_end[:open_from]), open_from, is_ordinary)


def _mark(is_end: npt.NDArray[np.bool_], groups: list[Group]) -> None:
    for start, last in groups:
        is_end[start:last] = False


_TRIGGERS: Final = np.isin(np.arange(256), list(b" \tgpf"))
"""Whether a line that begins with this byte may continue another, or begin a crash of Go."""


def may_continue(line: bytes) -> bool:
    """Return whether a line may continue another, or begins a crash of Go."""
    return line.startswith(_TRIGGER_STARTS)


def _triggers(data: bytes, first: npt.NDArray[np.intp]) -> list[int]:
    """Return the numbers of the lines that continue another, or begin a crash of Go."""
    found = np.flatnonzero(_TRIGGERS[np.frombuffer(data, np.uint8)[first]]).tolist()
    return [one for one in found if data.startswith(_TRIGGER_STARTS, int(first[one]))]
