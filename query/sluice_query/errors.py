"""What only a query can refuse. Every message is one line that says what to do."""

from sluice_protocol.errors import ErrorCode, ExitCode, SluiceError


class LakeRefused(SluiceError):
    """A lake path that cannot be read rightly: no table, another schema, a refused feature.

    Attributes:
        table: The table's place.
        reason: What is wrong with it and what to do.
    """

    code = ErrorCode.CORRUPT_OBJECT
    exit_code = ExitCode.FOUND_WRONG

    def __init__(self, table: str, reason: str) -> None:
        """Carries the table and the reason."""
        super().__init__(table, reason)
        self.table = table
        self.reason = reason

    def __str__(self) -> str:
        """Says which table and why."""
        return f"lake table refused: {self.reason}, table=`{self.table}`"


class QueryTimedOut(SluiceError):
    """A query that took longer than it may."""

    code = ErrorCode.OVERLOADED
    exit_code = ExitCode.FOUND_WRONG

    def __init__(self, limit_s: float) -> None:
        """Carries the limit in seconds."""
        super().__init__(limit_s)
        self.limit_s = limit_s

    def __str__(self) -> str:
        """Says what to do."""
        return f"query took too long: narrow the time range, limit_s=`{self.limit_s:g}`"


class QueryTooLarge(SluiceError):
    """A query that needs more memory than it may have."""

    code = ErrorCode.OVERLOADED
    exit_code = ExitCode.FOUND_WRONG

    def __init__(self, reason: str) -> None:
        """Carries what the engine said."""
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        """Says what to do."""
        return f"query needs too much memory: narrow the range or the limit: {self.reason}"


class ReconcilerAway(SluiceError):
    """The reconciler that a follower asks could not be reached: the same may succeed later."""

    code = ErrorCode.STORE_UNAVAILABLE
    exit_code = ExitCode.STORE_UNREACHABLE

    def __init__(self, url: str, reason: str) -> None:
        """Carries where it should be and what happened."""
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        """Says where, and why."""
        return f"reconciler does not answer: {self.reason}, url=`{self.url}`"
