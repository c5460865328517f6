"""Errors of the Spark jobs, and the cause out of an error that Spark has wrapped."""

import re
from typing import Final

from sluice_protocol.errors import ErrorCode, SluiceError


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


class JobFailed(SluiceError):
    """A Spark job that failed with an error that sluice did not raise; the cause is chained."""


_CAUSES: Final = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^\s*(?:sluice_\w+|deltalake)\.[\w.]+: (.+)$",
        r"^\s*[\w.]*(?:Error|Exception): (.+)$",
        r"^(?:: |Caused by: )[\w.$]+(?:Error|Exception): (.+)$",
        r"\bterminated with exception: (.+)$",
    )
)
"""Errors of sluice and delta-rs, of Python, of the JVM, and what Spark adds to a failed query."""
_SQLSTATE: Final = re.compile(r"\s+SQLSTATE: \w+")


def find_cause(text: str) -> str:
    """Return the message of the error that the text of a Spark exception is about.

    Spark puts the traceback of a Python worker or the stack of the JVM into the text of its
    exception. The last error of sluice or delta-rs is preferred to Python's, and that to the JVM's.
    """
    for pattern in _CAUSES:
        found = pattern.findall(text)
        if found:
            return _SQLSTATE.sub("", found[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "Spark reported no reason"
