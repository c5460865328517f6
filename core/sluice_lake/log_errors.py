"""Errors of reads of a table's log, and reads by delta-rs that raise them.

delta-rs opens a table without decoding all of its log. A later read may find the damage, and then
raises an error of delta-rs or of the parser.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sluice_lake.errors import TableRefused
from sluice_protocol.errors import StoreUnavailable

_CAUSE: Final = "↳"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_CHARS_MAX: Final = 400


class LogDamaged(Exception):
    """A file of a table's log is no log entry, or no checkpoint."""

    def __init__(self, name: str, reason: object) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason


@contextmanager
def log_errors_translated(uri: str) -> Iterator[None]:
    """Translate the errors of reads of a log."""
    try:
        yield
    except LogDamaged as error:
        raise _refused(uri, f"{error.name} of its log is damaged: {error.reason}") from error
    except DeltaError as error:
        raise _refused(uri, f"its log cannot be read: {error}") from error
    except OSError as error:
        raise StoreUnavailable("read", uri, first_line(error)) from error


def read_transaction(opened: DeltaTable, app: str) -> int | None:
    """Return the transaction version of an application; None if this state has none."""
    with log_errors_translated(opened.table_uri):
        version: int | None = opened.transaction_version(app)
    return version


def _refused(uri: str, what: str) -> TableRefused:
    remedy = "restore its log from a backup, or rebuild the lake (docs/spark.md)"
    return TableRefused(uri, f"{first_line(what)}; {remedy}")


def first_line(what: object) -> str:
    """Return a message on one line, or the name of the type of an error without one.

    The message of delta-rs has a line for each cause, and the last one is the reason.
    """
    text = str(what)
    if _CAUSE not in text:
        return text.partition("\n")[0] or type(what).__name__
    plain = " ".join(_COLOUR.sub("", text).replace(_CAUSE, ":").split())
    return plain if len(plain) <= _CHARS_MAX else f"{plain[:80]} … {plain[-_CHARS_MAX:]}"
