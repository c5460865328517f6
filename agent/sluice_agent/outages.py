"""Failed uploads in the log: the first ones of an outage one by one, then summaries."""

from dataclasses import dataclass
from typing import Final

import structlog

from sluice_agent.errors import GatewaysUnreachable
from sluice_agent.spool import SpooledBatch
from sluice_agent.upload_decisions import NOT_A_GATEWAY

FAILURES_LOGGED: Final = 5
"""Failed uploads of one outage that are logged one by one; a summary follows."""
SUMMARY_S: Final = 30.0
"""Time between two summaries of an outage, seconds."""
_log: Final = structlog.get_logger("sluice.agent.uploader")


@dataclass(slots=True, kw_only=True)
class _Outage:
    """Uploads that failed since the last one that succeeded, on the monotonic clock."""

    since_s: float
    logged_s: float
    failures: int = 0


class OutageLog:
    """Logs failed uploads, and ends the agent after `give_up_s` of them, unless that is 0."""

    def __init__(self, give_up_s: float) -> None:
        self._give_up_s = give_up_s
        self._outage: _Outage | None = None
        self.last_failure = ""

    def failed(
        self,
        batch: SpooledBatch,
        *,
        reason: str,
        gateway: str,
        waiting: int,
        now_s: float,
        detail: str = "",
    ) -> None:
        """Record a failed upload.

        Args:
            batch: The batch that was sent.
            reason: Why it failed.
            gateway: The address of the gateway.
            waiting: The batches that are not settled.
            now_s: The time on the monotonic clock.
            detail: The cause, and what to check, if they are known.

        Raises:
            GatewaysUnreachable: Uploads have failed for `give_up_s`.
        """
        outage = self._outage = self._outage or _Outage(since_s=now_s, logged_s=now_s)
        outage.failures += 1
        self.last_failure = f"{reason} at {gateway}" + (f": {detail}" if detail else "")
        failing_s = now_s - outage.since_s
        if self._give_up_s and failing_s >= self._give_up_s:
            raise GatewaysUnreachable(self._give_up_s, reason, gateway, detail)
        if outage.failures <= FAILURES_LOGGED:
            if reason == NOT_A_GATEWAY:
                return  # logged with the response by `foreign_responses`
            known = {"detail": detail} if detail else {}
            _log.warning(
                "upload_failed", name=batch.header.name, reason=reason, gateway=gateway, **known
            )
        elif now_s - outage.logged_s >= SUMMARY_S:
            outage.logged_s = now_s
            _log.warning(
                "uploads_failing",
                failures=outage.failures,
                failing_s=round(failing_s),
                waiting=waiting,
                reason=reason,
                gateway=gateway,
            )

    def ended(self) -> None:
        """Record a successful upload."""
        self._outage = None
        self.last_failure = ""
