"""Errors of the Spark jobs, and the cause out of an error that Spark has wrapped."""

import re
from collections.abc import Callable
from typing import Final

from sluice_protocol.errors import BadUsage, ErrorCode, SluiceError


class CheckpointAhead(BadUsage):
    """A streaming query starts after entries that the queue has not assigned: it was rebuilt."""


class LakeInconsistent(SluiceError):
    """The tables and the queue do not match; continuing would lose rows."""

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


class JvmEnded(JobFailed):
    """The JVM of the session has ended; only a new process can start another one."""


_CAUSES: Final = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^\s*(?:sluice_\w+|deltalake)\.[\w.]+: (.+)$",
        r"^\s*[\w.]*(?:Error|Exception): (.+)$",
        r"^(?:: |Caused by: )[\w.$]+(?:Error|Exception): (.+)$",
        r"\bterminated with exception: (.*)$",
    )
)
"""Errors of sluice and delta-rs, of Python, of the JVM, and what Spark adds to a failed query."""
_CAUSED_BY: Final = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+(?:: .+)?)$", re.MULTILINE)
_NO_REASON: Final = "Spark reported no reason"
_SQLSTATE: Final = re.compile(r"\s+SQLSTATE: \w+")


def find_cause(text: str) -> str:
    """Extract the root error from the text of a Spark exception.

    The text contains the traceback of a Python worker or the stack of the JVM. The last error of
    sluice or delta-rs is preferred, then Python's, then the JVM's.
    """
    for pattern in _CAUSES:
        found = [_SQLSTATE.sub("", cause).strip() for cause in pattern.findall(text)]
        if found:
            return found[-1] or _NO_REASON
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else _NO_REASON


def read_stack(error: BaseException) -> str:
    """Return the stack of the JVM that pyspark keeps with an exception; empty without one."""
    stack = getattr(error, "_stackTrace", None)
    return stack if isinstance(stack, str) else ""


def describe_failure(error: BaseException) -> str:
    """Return one line that describes the cause; some exceptions of the JVM have no message."""
    if isinstance(error, SluiceError):
        return str(error)
    cause = find_cause(str(error))
    innermost = _CAUSED_BY.findall(read_stack(error))
    return innermost[-1] if cause == _NO_REASON and innermost else cause


StopCheck = Callable[[], None]
"""Raises `JobStopped` if the job must stop. A job calls it before each step that it may omit."""


class JobStopped(SluiceError):
    """The job was stopped between two steps; run it again to continue."""


def never_stop() -> None:
    """Let the job continue."""
