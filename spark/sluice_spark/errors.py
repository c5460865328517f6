"""Errors of the Spark jobs, and the cause out of an error that Spark has wrapped."""

import re
from typing import Final

from sluice_protocol.errors import ErrorCode, ExitCode, SluiceError


class LakeInconsistent(SluiceError):
    """The tables, the queue and the checkpoint do not match; continuing would lose rows."""

    code = ErrorCode.CORRUPT_OBJECT

    def __init__(self, lane: int, reason: str, remedy: str) -> None:
        super().__init__(lane, reason, remedy)
        self.lane = lane
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"lake and queue do not match: {self.reason}; {self.remedy}, lane=`{self.lane}`"


class TableRefused(SluiceError):
    """A table that cannot be written or read safely: another schema, or a refused feature.

    Attributes:
        table: The table's place.
        reason: What is wrong with it.
    """

    exit_code = ExitCode.BAD_USAGE

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(table, reason)
        self.table = table
        self.reason = reason

    def __str__(self) -> str:
        return f"table refused: {self.reason}, table=`{self.table}`"


class CommitConflict(SluiceError):
    """Another writer committed to the table first; the caller reads its state again and retries."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(table, reason)
        self.table = table
        self.reason = reason

    def __str__(self) -> str:
        return f"another writer committed first: {self.reason}, table=`{self.table}`"


class JobFailed(SluiceError):
    """A Spark job that failed with an error that sluice did not raise; the cause is chained."""


_RAISED: Final = re.compile(r"^\s*(?:sluice_\w+|deltalake)\.[\w.]+: (?P<says>.+)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^\s*[\w.]*(?:Error|Exception): (?P<says>.+)$", re.MULTILINE)


def find_cause(text: str) -> str:
    """Return the message of the last sluice, delta-rs or else Python error in a text.

    Spark puts the traceback of a Python worker into the text of its own exception. Without a Python
    error in the text, its first line is returned.
    """
    for pattern in (_RAISED, _PYTHON):
        found = pattern.findall(text)
        if found:
            return str(found[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "Spark reported no reason"
