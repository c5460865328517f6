"""Clients that a server refused in the last minutes because they have no valid key.

Many senders ignore a refusal, so what they send is lost until an operator learns of it. The reasons
are few and general, because a client without access must not learn more: logs have the exact one.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S
from sluice_web.rare_warnings import RareWarnings

if TYPE_CHECKING:  # commands read the list without a server
    from aiohttp import web

REFUSED_PATH: Final = "/v1/refused-clients"
WINDOW_MINUTES: Final = 5
"""A door is listed until this long after its last refusal, and up to a minute longer."""

_KEY_FIELDS: Final = ("Authorization", "X-Amz-Firehose-Access-Key", "Signature-Input")

log = structlog.get_logger()


class ClientRefusal(StrEnum):
    """Why a client is not known."""

    NO_KEY = "it sent no key"
    WRONG_KEY = "its key is not valid"
    NO_HANDSHAKE = "it did not complete the handshake in time"


class RefusedDoor(msgspec.Struct, frozen=True, kw_only=True):
    """The clients that one door refused in the last minutes.

    The door of agents is `uploads`. `reason`, `peer` and `last_s`, the time since then, are those
    of the last refusal. The peer is empty if it is not known.
    """

    door: str
    refusals: int
    reason: str
    peer: str
    last_s: float


@dataclass(slots=True)
class _Door:
    """The refusals of a door by minute, and the last one."""

    minutes: Counter[int] = field(default_factory=Counter)
    unlogged: int = 0
    reason: ClientRefusal = ClientRefusal.NO_KEY
    peer: str = ""
    last_ns: int = 0


class RefusedClients:
    """Counts refused clients by door, and logs them at most once a minute for each door."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._warnings = RareWarnings(clock)
        self._doors: dict[str, _Door] = {}

    def add(self, door: str, reason: ClientRefusal, peer: str | None) -> None:
        """Count a refusal."""
        now_ns = self._clock.monotonic_ns()
        found = self._doors.setdefault(door, _Door())
        found.reason, found.peer, found.last_ns = reason, peer or "", now_ns
        found.minutes[_minute(now_ns)] += 1
        _forget_old(found, now_ns)
        found.unlogged += 1
        if self._warnings.may_warn(door):
            log.warning(
                "door_clients_refused",
                door=door,
                refusals=found.unlogged,
                reason=reason.value,
                peer=found.peer,
            )
            found.unlogged = 0

    def recent(self) -> tuple[RefusedDoor, ...]:
        """Return the doors with refusals in the last minutes, sorted by name."""
        now_ns = self._clock.monotonic_ns()
        for found in self._doors.values():
            _forget_old(found, now_ns)
        return tuple(
            RefusedDoor(
                door=door,
                refusals=found.minutes.total(),
                reason=found.reason.value,
                peer=found.peer,
                last_s=(now_ns - found.last_ns) / NS_PER_S,
            )
            for door, found in sorted(self._doors.items())
            if found.minutes
        )


def client_refusal_of(request: "web.Request") -> ClientRefusal:
    """Return why the sender of an HTTP request is not known."""
    sent = any(name in request.headers for name in _KEY_FIELDS)
    has_key = sent or request.get_extra_info("peercert")
    return ClientRefusal.WRONG_KEY if has_key else ClientRefusal.NO_KEY


def _minute(now_ns: int) -> int:
    return now_ns // (60 * NS_PER_S)


def _forget_old(found: _Door, now_ns: int) -> None:
    for minute in [one for one in found.minutes if one < _minute(now_ns) - WINDOW_MINUTES]:
        del found.minutes[minute]
