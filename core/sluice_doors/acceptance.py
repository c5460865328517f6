"""What the servers of gRPC and Fluent forward use of a gateway or an agent."""

from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from sluice_doors.requests import DoorRequest, DoorResult
from sluice_doors.table import DoorName
from sluice_protocol.clock import Clock
from sluice_web.problems import Problem
from sluice_web.refused_clients import RefusedClients

Sender_contra = TypeVar("Sender_contra", contravariant=True)


class MemoryBudget(Protocol):
    """The memory that bodies and messages may use."""

    def take(self, length_bytes: int, /) -> AbstractContextManager[None]:
        """Return a block that reserves memory; it raises `HttpRefusal` without room."""
        ...


class MessageAcceptance(Protocol[Sender_contra]):
    """Accepts messages; the gateway and the agent each have a type for senders."""

    @property
    def budget(self) -> MemoryBudget:
        """The memory that messages may use before they are accepted."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock of this machine."""
        ...

    @property
    def refused(self) -> RefusedClients:
        """The clients without a valid key."""
        ...

    def is_stopping(self) -> bool:
        """Return whether no message will be accepted any more."""
        ...

    async def accept_message(
        self, body: bytes, sender: Sender_contra, wanted: DoorRequest
    ) -> DoorResult:
        """Accept every record of a message."""
        ...

    def count_accepted(self, door: DoorName, result: DoorResult) -> None:
        """Count a message that was accepted."""
        ...

    def count_refused(self, door: DoorName, problem: Problem) -> None:
        """Count a message that was refused, or not accepted yet."""
        ...
