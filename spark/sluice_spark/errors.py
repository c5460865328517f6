"""What only the pipeline can refuse. Every message is one line that says what to do."""

from sluice_protocol.errors import ErrorCode, SluiceError


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


class JobFailed(SluiceError):
    """A Spark job that failed for a reason outside sluice; the cause is chained."""
