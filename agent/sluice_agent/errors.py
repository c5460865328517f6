"""Errors of the agent, each with the action that resolves it."""

from sluice_protocol.errors import BadUsage, ErrorCode, ExitCode, SluiceError


class SpoolUnwritable(SluiceError):
    """The spool cannot be written: the disk is full, fails, or denies access.

    The batch remains in memory, and its input is not read further until the write succeeds.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"cannot write spool: free space or repair its permissions; no record is lost "
            f"meanwhile, reason=`{self.reason}`, path=`{self.path}`"
        )


class SpoolBroken(SluiceError):
    """It is unknown whether the result of a write to the spool would survive a power cut.

    The agent must stop. After a restart it has a new boot and reads what the disk contains.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"durability of spool is unknown: check the disk and restart the agent, "
            f"reason=`{self.reason}`, path=`{self.path}`"
        )


class SpoolLocked(BadUsage):
    """Another process holds the lock of the spool."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"spool is locked by another process: stop that process or choose another --spool, "
            f"path=`{self.path}`"
        )


class CorruptEntry(SluiceError):
    """A spool file that does not contain the bytes that were written."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"spool file is corrupt: {self.reason}"


class GatewaysUnreachable(SluiceError):
    """No gateway accepted a batch for as long as the operator allows; the batches are kept."""

    code = ErrorCode.STORE_UNAVAILABLE
    exit_code = ExitCode.STORE_UNREACHABLE

    def __init__(self, give_up_s: float, reason: str, gateway: str, detail: str = "") -> None:
        super().__init__(give_up_s, reason, gateway, detail)
        self.give_up_s = give_up_s
        self.reason = reason
        self.gateway = gateway
        self.detail = detail

    def __str__(self) -> str:
        check = self.detail or "check the gateways"
        return (
            f"gave up sending: {check}; batches are kept in the spool and sent by the "
            f"next run, give_up_s=`{self.give_up_s:g}`, reason=`{self.reason}`, "
            f"gateway=`{self.gateway}`"
        )


class SendingRefused(SluiceError):
    """The gateways refuse this agent with 401 or `forbidden_agent`; an operator must act."""

    def __init__(self, gateway: str, status: int, response_code: str) -> None:
        super().__init__(gateway, status, response_code)
        self.gateway = gateway
        self.status = status
        self.response_code = response_code

    def __str__(self) -> str:
        return (
            f"gateway refuses this agent: check its key, its clock and the principals file; "
            f"batches are kept, gateway=`{self.gateway}`, status=`{self.status}`, "
            f"code=`{self.response_code}`"
        )


class NotAGateway(SluiceError):
    """Only servers that are not gateways have responded, and the run waits for acceptance."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason}; batches are kept in the spool and sent by the next run"
