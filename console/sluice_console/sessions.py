"""Logins: sessions in the memory of this process, and the limit of failed logins."""

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S

SESSIONS_MAX: Final = 1_000
"""Sessions that are kept; the oldest is dropped first."""
FAILURES_MAX: Final = 5
"""Failed logins of one address, after which it waits."""
FAILURES_ALL_MAX: Final = 100
"""Failed logins of all addresses together, after which every login waits."""
FAILURE_S: Final = 60.0
"""Time after which one failed login is forgotten."""
_ADDRESSES_MAX: Final = 10_000


class VisitorRole(StrEnum):
    """What a visitor may do: a viewer reads, an operator also writes."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who sent a request.

    Attributes:
        csrf: Its writes must contain it; empty where a browser cannot forge them.
    """

    name: str
    role: VisitorRole
    csrf: str = ""


class SessionBook:
    """The sessions of this process. A restart ends them."""

    def __init__(self, clock: Clock, new_secret: Callable[[], str], lifetime_s: float) -> None:
        """Create an empty book; `new_secret` returns a new unguessable text."""
        self._clock = clock
        self._new_secret = new_secret
        self._lifetime_ns = int(lifetime_s * NS_PER_S)
        self._key = new_secret().encode()
        self._sessions: OrderedDict[str, tuple[int, str, VisitorRole]] = OrderedDict()

    def open(self, name: str, role: VisitorRole) -> str:
        """Open a session and return its id, the value of the cookie."""
        session_id = self._new_secret()
        ends_ns = self._clock.monotonic_ns() + self._lifetime_ns
        self._sessions[_hash(session_id)] = (ends_ns, name, role)
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session_id

    def find(self, session_id: str) -> Visitor | None:
        """Return the visitor of a session, or None if it ended or never existed."""
        digest = _hash(session_id)
        found = self._sessions.get(digest)
        if found is None:
            return None
        ends_ns, name, role = found
        if ends_ns <= self._clock.monotonic_ns():
            del self._sessions[digest]
            return None
        return Visitor(name=name, role=role, csrf=self.csrf_of(digest))

    def close(self, session_id: str) -> None:
        """End a session."""
        self._sessions.pop(_hash(session_id), None)

    def csrf_of(self, subject: str) -> str:
        """Return the CSRF token of a session or of a proxy's user."""
        return hmac.new(self._key, f"csrf:{subject}".encode(), hashlib.sha256).hexdigest()


def _hash(session_id: str) -> str:
    """Return the key of a session: a table of hashes is looked up without a timing leak."""
    return hashlib.sha256(session_id.encode(errors="replace")).hexdigest()


class LoginLimit:
    """Counts failed logins by address and together, in bounded memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, list[int]] = OrderedDict()
        self._all: list[int] = []

    def wait_s(self, address: str) -> float:
        """Return how long an address must wait before its next login, 0 for not at all."""
        now_ns = self._clock.monotonic_ns()
        own = self._recent(self._failures.get(address, []), now_ns)
        self._all = self._recent(self._all, now_ns)
        waits = [0.0]
        for failures, most in ((own, FAILURES_MAX), (self._all, FAILURES_ALL_MAX)):
            if len(failures) >= most:
                waits.append(FAILURE_S - (now_ns - failures[-most]) / NS_PER_S)
        return max(waits)

    def count_failure(self, address: str) -> None:
        """Count a failed login."""
        now_ns = self._clock.monotonic_ns()
        own = [*self._recent(self._failures.pop(address, []), now_ns), now_ns]
        self._failures[address] = own[-FAILURES_MAX:]
        self._all = [*self._recent(self._all, now_ns), now_ns][-FAILURES_ALL_MAX:]
        if len(self._failures) > _ADDRESSES_MAX:
            self._failures.popitem(last=False)

    @staticmethod
    def _recent(failures: list[int], now_ns: int) -> list[int]:
        return [at for at in failures if now_ns - at < FAILURE_S * NS_PER_S]
