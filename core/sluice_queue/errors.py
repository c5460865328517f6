"""Errors that only the queue raises."""

from sluice_protocol.errors import ErrorCode, InvalidRecord, SluiceError


class QueueFull(SluiceError):
    """A lane's register names the maximum of segments: the consumer is far behind."""

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
    """The lane cannot apply an acknowledgement of this sequence; nothing changed."""

    code = ErrorCode.BAD_REQUEST

    def __init__(self, register: str, sequence: int, reason: str) -> None:
        super().__init__(register, sequence, reason)
        self.register = register
        self.sequence = sequence
        self.reason = reason

    def __str__(self) -> str:
        return f"ack refused: {self.reason}, register=`{self.register}`, sequence=`{self.sequence}`"


class ResumeRefused(SluiceError):
    """A consumer's stored sequence does not match the lane: entries would be lost or repeated."""

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
    """An entry names a work list that does not exist: the lane halts, the list is never skipped."""

    code = ErrorCode.CORRUPT_OBJECT

    def __init__(self, register: str, sequence: int, location: str) -> None:
        super().__init__(register, sequence, location)
        self.register = register
        self.sequence = sequence
        self.location = location

    def __str__(self) -> str:
        return (
            f"work list is missing and the lane is halted: rebuild it with `sluice rebuild`, "
            f"register=`{self.register}`, sequence=`{self.sequence}`, key=`{self.location}`"
        )


class ProducerSuperseded(SluiceError):
    """Another process appends under this producer's id: stop this one; nothing was written."""

    def __init__(self, register: str, counter: int, current: int) -> None:
        super().__init__(register, counter, current)
        self.register = register
        self.counter = counter
        self.current = current

    def __str__(self) -> str:
        return (
            f"producer superseded: another process took over its id, stop this one, "
            f"register=`{self.register}`, counter=`{self.counter}`, current=`{self.current}`"
        )


class RegisterLost(SluiceError):
    """The register that this producer wrote to is missing or was replaced by another one."""

    def __init__(self, register: str) -> None:
        super().__init__(register)
        self.register = register

    def __str__(self) -> str:
        return (
            f"register lost with its pending entries: stop its consumer and run `sluice "
            f"rebuild`, register=`{self.register}`"
        )


class LayoutChanged(SluiceError):
    """The register belongs to another layout of lanes than its user knows; nothing was written."""

    def __init__(self, register: str, known: int, current: int) -> None:
        super().__init__(register, known, current)
        self.register = register
        self.known = known
        self.current = current

    def __str__(self) -> str:
        return (
            "the number of lanes was changed, or is being changed: start this process again; if"
            " that does not help, run the interrupted `sluice queue lanes` again,"
            f" register=`{self.register}`, known=`{self.known}`, current=`{self.current}`"
        )


def refuse_other_layout(register: str, known: int, current: int) -> None:
    """Raise `LayoutChanged` unless a register belongs to the layout that its user knows."""
    if current != known:
        raise LayoutChanged(register, known, current)


class LaneDamaged(InvalidRecord):
    """A lane's register, or a segment that it names, cannot be read: the lane halts."""

    def __str__(self) -> str:
        return (
            f"lane is damaged: {self.reason}; stop its consumer and run `sluice rebuild`, which"
            f" keeps a copy, key=`{self.key}`"
        )
