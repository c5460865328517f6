"""What only the queue can refuse."""

from sluice_protocol.errors import ErrorCode, SluiceError


class QueueFull(SluiceError):
    """A lane's register names as many segments as it may: the consumer is far behind."""

    code = ErrorCode.OVERLOADED

    def __init__(self, register: str, waiting: int) -> None:
        super().__init__(register, waiting)
        self.register = register
        self.waiting = waiting

    def __str__(self) -> str:
        return (
            "queue is full: start or repair the lane's consumer, then append again,"
            f" register=`{self.register}`, waiting=`{self.waiting}`"
        )


class AckRefused(SluiceError):
    """An acknowledgement of a sequence that the lane cannot take; nothing changed."""

    code = ErrorCode.BAD_REQUEST

    def __init__(self, register: str, sequence: int, reason: str) -> None:
        super().__init__(register, sequence, reason)
        self.register = register
        self.sequence = sequence
        self.reason = reason

    def __str__(self) -> str:
        return f"ack refused: {self.reason}, register=`{self.register}`, sequence=`{self.sequence}`"


class ResumeRefused(SluiceError):
    """A consumer's persisted sequence does not fit the lane: going on would lose or repeat."""

    def __init__(self, register: str, sequence: int, reason: str) -> None:
        super().__init__(register, sequence, reason)
        self.register = register
        self.sequence = sequence
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"cannot resume: {self.reason}, register=`{self.register}`, sequence=`{self.sequence}`"
        )


class WorkListMissing(SluiceError):
    """An entry names a work list that is not there: the lane stops, the list is never skipped."""

    code = ErrorCode.CORRUPT_OBJECT

    def __init__(self, register: str, sequence: int, location: str) -> None:
        super().__init__(register, sequence, location)
        self.register = register
        self.sequence = sequence
        self.location = location

    def __str__(self) -> str:
        return (
            "work list is missing: rebuild it with `sluice rebuild`, the lane waits,"
            f" register=`{self.register}`, sequence=`{self.sequence}`, key=`{self.location}`"
        )


class ProducerSuperseded(SluiceError):
    """Another process appends under this producer's id: this one must stop, nothing was written."""

    def __init__(self, register: str, counter: int, current: int) -> None:
        super().__init__(register, counter, current)
        self.register = register
        self.counter = counter
        self.current = current

    def __str__(self) -> str:
        return (
            "producer superseded: another process took over this producer's id, stop this one,"
            f" register=`{self.register}`, counter=`{self.counter}`, current=`{self.current}`"
        )


class RegisterLost(SluiceError):
    """A register that this producer wrote to is gone, or another one was begun in its place."""

    def __init__(self, register: str) -> None:
        super().__init__(register)
        self.register = register

    def __str__(self) -> str:
        return (
            "register lost: what waited in it is not enqueued any more; stop its consumer and run"
            f" `sluice rebuild`, register=`{self.register}`"
        )
