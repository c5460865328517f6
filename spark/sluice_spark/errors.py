"""What only the pipeline can refuse. Every message is one line that says what to do."""

import re
from typing import Final

from sluice_protocol.errors import ErrorCode, ExitCode, SluiceError


class LakeInconsistent(SluiceError):
    """The tables, the queue and the checkpoint cannot belong together: going on would lose rows."""

    code = ErrorCode.CORRUPT_OBJECT

    def __init__(self, lane: int, reason: str, remedy: str) -> None:
        """Carries the lane, what does not fit, and what to do."""
        super().__init__(lane, reason, remedy)
        self.lane = lane
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        """Says what does not fit."""
        return f"lake and queue disagree: {self.reason}; {self.remedy}, lane=`{self.lane}`"


class TableRefused(SluiceError):
    """A table that cannot be written or read safely: another schema, or a refused feature.

    Attributes:
        table: The table's place.
        reason: What is wrong with it.
    """

    exit_code = ExitCode.BAD_USAGE

    def __init__(self, table: str, reason: str) -> None:
        """Carries the table and the reason."""
        super().__init__(table, reason)
        self.table = table
        self.reason = reason

    def __str__(self) -> str:
        """Says which table and why."""
        return f"table refused: {self.reason}, table=`{self.table}`"


class CommitConflict(SluiceError):
    """Another writer committed first: everything is to be read again. It is not for people."""

    def __init__(self, table: str, reason: str) -> None:
        """Carries the table and what the conflict was."""
        super().__init__(table, reason)
        self.table = table
        self.reason = reason

    def __str__(self) -> str:
        """Says what conflicted."""
        return f"another writer committed first: {self.reason}, table=`{self.table}`"


class JobFailed(SluiceError):
    """A Spark job that failed for a reason outside sluice; the cause is chained."""


_RAISED: Final = re.compile(r"^\s*(?:sluice_\w+|deltalake)\.[\w.]+: (?P<says>.+)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^\s*[\w.]*(?:Error|Exception): (?P<says>.+)$", re.MULTILINE)


def find_cause(text: str) -> str:
    """Gives what an error of sluice said inside a wrapped text; else its last Python error."""
    for pattern in (_RAISED, _PYTHON):
        found = pattern.findall(text)
        if found:
            return str(found[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "no reason was given"
