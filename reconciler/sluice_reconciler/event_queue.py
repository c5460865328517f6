"""Takes object events from a queue: receive, take what they name, then say that they are done."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import structlog

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import ObjectKey
from sluice_reconciler.events import parse_events
from sluice_reconciler.intake import Intake, Outcome

if TYPE_CHECKING:  # the SDK is an extra: only who opens a queue needs it
    from sluice_store.s3.events import EventMessage

log = structlog.get_logger()


class EventSource(Protocol):
    """Where events come from."""

    async def receive(self) -> "list[EventMessage]":
        """Waits for messages and gives them."""
        ...

    async def done(self, messages: "Sequence[EventMessage]") -> None:
        """Removes messages whose keys were taken."""
        ...


async def take_events(source: EventSource, intake: Intake) -> Outcome:
    """Takes one round of messages to its end.

    A message that cannot be read is counted, logged and removed: it would come back for ever, and
    the full pass finds what it may have named.

    Raises:
        StoreError: Messages or store could not be reached; the messages come again.
        OutcomeUnknown: The bounds of a write are spent; the messages come again.
    """
    messages = await source.receive()
    keys: list[ObjectKey] = []
    for one in messages:
        try:
            hints = parse_events(one.body)
        except BadUsage as error:
            intake.metrics.events.labels("invalid").inc()
            log.warning("event not understood", reason=str(error))
            continue
        intake.metrics.events.labels("accepted").inc(len(hints.keys))
        intake.metrics.events.labels("foreign").inc(hints.foreign)
        keys += hints.keys
    outcome = await intake.take_new(keys) if keys else Outcome()
    await source.done(messages)
    return outcome
