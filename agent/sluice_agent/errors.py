"""What can go wrong on the agent's machine, each with what to do about it."""

from sluice_protocol.errors import BadUsage, SluiceError


class SpoolUnwritable(SluiceError):
    """The spool could not take a batch: disk full, no rights, or a failing disk.

    The batch stays in memory and its input is not read further until it could be written.

    Attributes:
        path: The file or directory that could not be written.
        reason: What the system said.
    """

    def __init__(self, path: str, reason: str) -> None:
        """Carries the path and the system's reason."""
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        """Says which path, why, and what to do."""
        return (
            "spool cannot be written: free space or mend its rights, nothing is lost meanwhile,"
            f" reason=`{self.reason}`, path=`{self.path}`"
        )


class SpoolBroken(SluiceError):
    """A write to the spool ended so that nobody knows whether it would survive a power cut.

    The agent must stop; the next one starts a new boot and reads what really stands there.

    Attributes:
        path: The file or directory in doubt.
        reason: What the system said.
    """

    def __init__(self, path: str, reason: str) -> None:
        """Carries the path and the system's reason."""
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        """Says which path, why, and what to do."""
        return (
            "spool is in doubt: check the disk and start the agent again,"
            f" reason=`{self.reason}`, path=`{self.path}`"
        )


class SpoolLocked(BadUsage):
    """Another process holds the spool."""

    def __init__(self, path: str) -> None:
        """Carries the spool's directory."""
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        """Says which spool and what to do."""
        return (
            f"spool is held by another process: stop it or name another --spool, path=`{self.path}`"
        )


class CorruptEntry(SluiceError):
    """A spool file whose bytes are not those that were written.

    Attributes:
        reason: What is wrong with it.
    """

    def __init__(self, reason: str) -> None:
        """Carries what is wrong."""
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        """Says what is wrong."""
        return f"spool file is corrupt: {self.reason}"


class SendingRefused(SluiceError):
    """The gateways refuse this agent (401 or `forbidden_agent`): a person must act.

    Attributes:
        gateway: Who refused.
        status: The HTTP status.
        response_code: The code of the answer, or an empty text.
    """

    def __init__(self, gateway: str, status: int, response_code: str) -> None:
        """Carries who refused and how."""
        super().__init__(gateway, status, response_code)
        self.gateway = gateway
        self.status = status
        self.response_code = response_code

    def __str__(self) -> str:
        """Says who refused and what to do."""
        return (
            "gateway refuses this agent: check its key, its clock and the principals file,"
            " batches are kept,"
            f" gateway=`{self.gateway}`, status=`{self.status}`, code=`{self.response_code}`"
        )
