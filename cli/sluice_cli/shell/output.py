"""Output of commands: JSON for programs, text for people, and errors on one line."""

import dataclasses
import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import msgspec

from sluice_protocol.errors import ErrorCode, ExitCode, SluiceError
from sluice_protocol.units import NS_PER_S
from sluice_protocol.utf8 import printable_text

if TYPE_CHECKING:
    from rich.console import Console

_REMEDIES: Final = {
    errno.ENOSPC: "free space or use another disk",
    errno.EDQUOT: "free space or raise the quota",
    errno.EACCES: "repair its permissions or use a place of this user",
    errno.EPERM: "repair its permissions or use a place of this user",
    errno.EROFS: "use a place that can be written",
    errno.ENOENT: "create it or correct its path",
    errno.EMFILE: "raise the limit of open files",
}


_COLUMN_CHARS_MAX: Final = 80


def emit(value: object, *, as_json: bool, human: Callable[["Console"], None]) -> None:
    """Print a result on standard output: one JSON document, or text.

    `value` is anything that msgspec can encode.
    """
    if as_json:
        write_json(value, sys.stdout)
    else:
        from rich.console import Console

        out = cast("TextIO", _TerminalText(sys.stdout)) if sys.stdout.isatty() else None
        # Texts of the data may contain `[red]` or `:ok:`, which are no markup here.
        human(Console(file=out, highlight=False, soft_wrap=True, markup=False, emoji=False))


class _TerminalText:
    """Standard output on which texts of senders execute nothing, as for records of a query."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        """Write text; a control character other than a line break or a tab becomes U+FFFD."""
        return self._out.write(printable_text(text, kept="\n\t"))

    def flush(self) -> None:
        self._out.flush()

    def isatty(self) -> bool:
        """Return False: rich then writes no sequences for a terminal either."""
        return False


def write_json(value: object, out: TextIO) -> None:
    """Write one JSON document and a newline; keys keep their order."""
    out.write(json_line(value))
    out.flush()


def json_line(value: object) -> str:
    """Return one JSON document and a newline; keys keep their order."""
    return msgspec.json.encode(value, enc_hook=_plain).decode() + "\n"


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)


def csv_line(row: Sequence[object]) -> str:
    """Return a line of CSV, RFC 4180 with a line feed: None is an empty field, no text is `""`."""
    return ",".join(map(_csv_field, row)) + "\n"


def _csv_field(value: object) -> str:
    if value is None:
        return ""
    text = value_text(value)
    if text and not any(one in text for one in ',"\n\r'):
        return text
    return '"' + text.replace('"', '""') + '"'


def value_text(value: object) -> str:
    """Return a value as text: JSON, without the quotes of a string."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def print_columns(console: "Console", rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns. No value is cut: an id is copied from one command to the next.

    A value longer than `_COLUMN_CHARS_MAX` does not widen its column: the rest of its row follows.
    The first row contains the names of the columns.
    """
    widths = [
        max((len(cell) for cell in column if len(cell) <= _COLUMN_CHARS_MAX), default=0)
        for column in zip(*rows, strict=True)
    ]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        console.print("  ".join(cells).rstrip())


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns on standard output, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    is_number = [
        all(cell[:1].isdigit() for cell in column[1:]) for column in zip(*rows, strict=True)
    ]
    for row in rows:
        cells = (
            f"{printable_text(cell):{'>' if right else '<'}{width}}"
            for cell, width, right in zip(row, widths, is_number, strict=True)
        )
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    sys.stdout.flush()


def print_summary(summary: Mapping[str, Any], results: str) -> None:
    """Print on standard error how many results there are and how complete they are."""
    until = "now" if summary["complete_now"] else summary["accepted_until"] or "unknown"
    held = f", held back by {summary['held_by']}" if summary["held_by"] else ""
    facts = (
        results,
        f"read {summary['segments_read']} segments, {format_size(summary['bytes_read'])}",
        f"pruned {summary['segments_pruned']}",
        f"{summary['waiting_batches']} batches not in the lake yet",
        f"accepted until {until}{held}",
        f"{summary['elapsed_ms']} ms",
    )
    lines = ["; ".join(facts)]
    if summary["rollups_only_before"] is not None:
        lines.append(f"from rollups only before {summary['rollups_only_before']}")
    lines += [f"partial: {reason}" for reason in summary["reasons"]]
    lines += summary["hints"]
    for line in lines:
        sys.stderr.write(printable_text(line) + "\n")  # names in reasons are from senders


def fail(message: str) -> None:
    """Print an error on standard error, on one line; one that cannot be printed is dropped."""
    try:
        sys.stderr.write(f"sluice: {printable_text(message)}\n")
        sys.stderr.flush()
    except OSError:  # its disk is full, or its reader has ended; discard the rest at the end too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def describe_with_code(error: SluiceError) -> str:
    """Return the message of an error with its code, the anchor in `docs/reference/errors.md`."""
    if error.exit_code is ExitCode.BAD_USAGE or error.code is ErrorCode.INTERNAL:
        return str(error)  # bad usage names its remedy, and `internal` is what has no other code
    return f"{error}, code=`{error.code}`"


def describe_os_error(error: OSError) -> str:
    """Return the message of an error of this machine's files, with the remedy."""
    remedy = _REMEDIES.get(error.errno or 0, "correct it and repeat the command")
    place = "" if error.filename is None else f", path=`{error.filename}`"
    return f"cannot read or write: {error.strerror or error}; {remedy}{place}"


def format_size(size_bytes: int) -> str:
    """Format a size with its unit, powers of 1024."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:  # noqa: PLR2004 - the base of the units
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def format_time(at_ns: int) -> str:
    """Format a time with milliseconds, for example `2026-01-02T03:04:05.678Z`."""
    moment = datetime.fromtimestamp(at_ns // NS_PER_S, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ns % NS_PER_S // 1_000_000:03d}Z"
