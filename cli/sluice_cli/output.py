"""What commands print: JSON for programs, text for people, and errors that say what to do."""

import dataclasses
import sys
from collections.abc import Callable
from typing import TextIO

import msgspec
from rich.console import Console


def emit(value: object, *, as_json: bool, human: Callable[[Console], None]) -> None:
    """Prints a result on standard output: one JSON document, or what `human` draws.

    Args:
        value: A struct, dataclass, mapping or sequence that msgspec can encode.
        as_json: Whether a program reads it.
        human: Draws the result on a console; called only for people.
    """
    if as_json:
        write_json(value, sys.stdout)
    else:
        human(Console(highlight=False, soft_wrap=True))


def write_json(value: object, out: TextIO) -> None:
    """Writes one JSON document and a newline, keys in their own order."""
    out.write(msgspec.json.encode(value, enc_hook=_plain).decode() + "\n")
    out.flush()


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)


def fail(message: str) -> None:
    """Prints an error on standard error, on one line."""
    sys.stderr.write(f"sluice: {message}\n")


def format_size(size_bytes: int) -> str:
    """Gives a size with its unit, powers of 1024."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:  # noqa: PLR2004 - the base of the units
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
