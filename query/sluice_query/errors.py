"""Errors that only a query raises. Every message is one line that contains what to do."""

from sluice_lake.errors import TableRefused
from sluice_protocol.errors import ErrorCode, ExitCode, SluiceError


class QueryTimedOut(SluiceError):
    """A query that exceeded its time limit."""

    code = ErrorCode.OVERLOADED

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s)
        self.limit_s = limit_s

    def __str__(self) -> str:
        return f"query exceeded its time limit: narrow the time range, limit_s=`{self.limit_s:g}`"


class QueryTooLarge(SluiceError):
    """A query that needs more memory than its limit."""

    code = ErrorCode.OVERLOADED

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"query exceeded its memory limit: narrow the range or the limit: {self.reason}"


class DataFilesUnreadable(TableRefused):
    """Data files that cannot be read; a query for records leaves them out and is partial."""


class TooManyClients(SluiceError):
    """A request that is refused because as many others as possible are open."""

    code = ErrorCode.OVERLOADED

    def __init__(self, what: str, most: int) -> None:
        super().__init__(what, most)
        self.what = what
        self.most = most

    def __str__(self) -> str:
        return f"too many {self.what} already: wait until one ends, most=`{self.most}`"


class ReconcilerUnreachable(SluiceError):
    """The reconciler of a follower could not be reached; a retry may succeed."""

    code = ErrorCode.STORE_UNAVAILABLE
    exit_code = ExitCode.STORE_UNREACHABLE

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"reconciler is unreachable: {self.reason}, url=`{self.url}`"
