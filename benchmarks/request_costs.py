"""What a gateway requested of its store, and what the requests of a benchmark cost per GiB."""

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from sluice_console.gateway_health import samples_of
from sluice_protocol.prices import describe_requests, requests_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayCounts:
    """The counters of a gateway."""

    calls: Mapping[str, float]
    accepted_bytes: float

    def since(self, before: "GatewayCounts") -> "GatewayCounts":
        """Return what was added since an earlier state."""
        calls = {name: made - before.calls.get(name, 0.0) for name, made in self.calls.items()}
        return GatewayCounts(
            calls=calls, accepted_bytes=self.accepted_bytes - before.accepted_bytes
        )

    def describe(self) -> str:
        """Return requests and dollars per GiB of accepted frames."""
        return describe_requests(requests_of(self.calls), self.accepted_bytes)


def read_gateway_counts(port: int) -> GatewayCounts:
    """Read the counters of the gateway that serves a port of this machine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    calls: dict[str, float] = {}
    for one in samples_of(text, "sluice_store_requests_total"):
        calls[one.labels["op"]] = calls.get(one.labels["op"], 0.0) + one.value
    accepted = sum(one.value for one in samples_of(text, "sluice_accepted_bytes_total"))
    return GatewayCounts(calls=calls, accepted_bytes=accepted)
