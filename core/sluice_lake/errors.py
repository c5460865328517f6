"""Errors of reading and committing to tables of the lake."""

from sluice_protocol.errors import ErrorCode, SluiceError


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
