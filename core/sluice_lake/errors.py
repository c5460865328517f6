"""Errors of reading and committing to tables of the lake, and reads that raise them.

delta-rs opens a table without decoding all of its log. A later read may find the damage, and then
raises an error of delta-rs or of the parser.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sluice_protocol.errors import ErrorCode, SluiceError, StoreUnavailable

if TYPE_CHECKING:
    from deltalake import DeltaTable


class TableRefused(SluiceError):
    """A table that cannot be used safely: no Delta table, another schema, a refused feature."""

    code = ErrorCode.CORRUPT_OBJECT

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(table, reason)
        self.table = table
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot use lake table: {self.reason}, table=`{self.table}`"


class CommitConflict(SluiceError):
    """Another writer committed first. The caller reads the table again and retries."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(table, reason)
        self.table = table
        self.reason = reason

    def __str__(self) -> str:
        return f"another writer committed first: {self.reason}, table=`{self.table}`"


_CAUSE: Final = "↳"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_CHARS_MAX: Final = 400
_PATH_OBJECT: Final = re.compile(r'ParsedLogPath \{.*?filename: "([^"]*)".*?file_type: \w+ \}')
"""How delta-rs writes the path of a file of the log."""
RESTORE_LOG: Final = "restore its log from a backup, or rebuild the lake (docs/spark.md)"


class LogDamaged(Exception):
    """A file of a table's log is no log entry, or no checkpoint."""

    def __init__(self, name: str, reason: object) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason


@contextmanager
def log_errors_translated(uri: str) -> Iterator[None]:
    """Translate the errors of reads of a log."""
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - an extra

    try:
        yield
    except LogDamaged as error:
        raise _refused(uri, f"{error.name} of its log is damaged: {error.reason}") from error
    except DeltaError as error:
        raise _refused(uri, f"its log cannot be read: {error}") from error
    except OSError as error:
        raise StoreUnavailable("read", uri, first_line(error)) from error


@contextmanager
def data_errors_translated(uri: str) -> Iterator[None]:
    """Translate the errors of reads of a table's data files in this process."""
    import pyarrow as pa  # noqa: PLC0415 - an extra
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - an extra

    try:
        yield
    except DeltaError as error:
        raise _refused(uri, f"its log cannot be read: {error}") from error
    except FileNotFoundError as error:
        raise _unreadable(uri, "missing", error) from error
    except pa.ArrowException as error:
        raise _unreadable(uri, "damaged", error) from error
    except OSError as error:
        # Arrow reports a damaged page as an OSError without a number.
        if error.errno is None and ("://" not in uri or uri.startswith("file://")):
            raise _unreadable(uri, "damaged", error) from error
        raise StoreUnavailable("read", uri, first_line(error)) from error


def _unreadable(uri: str, state: str, error: Exception) -> TableRefused:
    remedy = "restore the file from a backup, or rebuild the lake (docs/spark.md)"
    return TableRefused(uri, f"a data file is {state}: {first_line(error)}; {remedy}")


def read_transaction(opened: "DeltaTable", app: str) -> int | None:
    """Return the transaction version of an application; None if this state has none."""
    with log_errors_translated(opened.table_uri):
        version: int | None = opened.transaction_version(app)
    return version


def _refused(uri: str, what: str) -> TableRefused:
    return TableRefused(uri, f"{first_line(what)}; {RESTORE_LOG}")


def first_line(what: object) -> str:
    """Return a message on one short line, or the name of the type of an error without one.

    The message of delta-rs has a line for each cause, and the last one is the reason.
    """
    text = _PATH_OBJECT.sub(r"\1", str(what))
    if _CAUSE in text:
        plain = " ".join(_COLOUR.sub("", text).replace(_CAUSE, ":").split())
    else:
        plain = text.partition("\n")[0] or type(what).__name__
    return plain if len(plain) <= _CHARS_MAX else f"{plain[:80]} … {plain[-_CHARS_MAX:]}"
