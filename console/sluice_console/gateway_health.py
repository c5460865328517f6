"""What the metrics of a gateway show: its store calls, and what an operator should know. Pure.

The limits are those of the alerts in `deploy/monitoring/alerts.yaml`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sluice_protocol.units import NS_PER_S
from sluice_web.refused_clients import RefusedDoor

LOOKUP: Final = "dns+"
"""Start of the entry of a gateway whose addresses are looked up."""
REFUSED_SHARE_MAX: Final = 0.05
"""Share of the uploads that get another response than 200."""
SLOW_SHARE_MAX: Final = 0.01
SLOW_S: Final = 5.0
"""Duration of a store call from which it is slow."""
COUNTED_MIN: Final = 20.0
"""Uploads or store calls from which a share has a meaning."""
JOURNAL_AGE_S_MAX: Final = 30.0
SPOOL_SHARE_MAX: Final = 0.8
SPOOL_FREE_BYTES_MIN: Final = 1e9
_ACCEPTED: Final = frozenset({"new", "duplicate"})
_CALLS: Final = "sluice_store_requests_total"
_UPLOADS: Final = "sluice_accepts_total"
_SECONDS: Final = "sluice_store_request_seconds"
_GAUGES: Final = frozenset(
    {
        *("sluice_journal_age_seconds", "sluice_principals_stale", "sluice_spool_bytes"),
        *("sluice_spool_capacity_bytes", "sluice_spool_free_bytes", "sluice_spool_pending_batches"),
    }
)
_READ: Final = (_CALLS, _UPLOADS, f"{_SECONDS}_count", f"{_SECONDS}_bucket", *_GAUGES)
_SLOW_BOUND: Final = f'le="{SLOW_S:g}'
"""In each line of the one bucket that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReading:
    """The metrics of one gateway at one time of a monotonic clock.

    Slow store calls took longer than `SLOW_S`; calls are by operation, uploads by outcome, and
    gauges are the values without labels.
    """

    at_ns: int
    calls: Mapping[str, float]
    errors: float
    slow: float
    uploads: Mapping[str, float]
    gauges: Mapping[str, float]


class GatewayHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator should know about one gateway.

    Attributes:
        problem: Why its metrics cannot be read; empty if they were.
        not_ready: Why it accepts nothing now, as its `/readyz` states it; empty if it is ready.
        errors_per_s: Store calls that failed; None before the second reading.
        refused: Share of the uploads of the last minutes that were refused; 0 for few uploads.
        refused_as: The most frequent outcome of these.
        slow: Share of the store calls of the last minutes that were slow; 0 for few calls.
        journal_age_s: Age of the newest object of its journal.
        spool_full: Why its spool is nearly full; empty if it is not.
        principals_stale: Whether it ignores an invalid principals file.
        refused_doors: The doors whose clients it refused in the last minutes, without a valid key.
    """

    url: str
    problem: str = ""
    not_ready: str = ""
    errors_per_s: float | None = None
    refused: float = 0.0
    refused_as: str = ""
    slow: float = 0.0
    journal_age_s: float = 0.0
    spool_full: str = ""
    principals_stale: bool = False
    refused_doors: tuple[RefusedDoor, ...] = ()


def parse_reading(text: str, at_ns: int) -> GatewayReading:
    """Return the metrics of a gateway.

    Only the lines that are used are parsed: the others are most of the text. Raise `ValueError` if
    the text is not that of a gateway.
    """
    calls: defaultdict[str, float] = defaultdict(float)
    uploads: defaultdict[str, float] = defaultdict(float)
    gauges: dict[str, float] = {}
    errors = slow = 0.0
    lines = [line for line in lines_of(text, *_READ) if _is_read(line)]
    if not lines:
        raise ValueError("no metric of a gateway")
    for one in parse_samples(lines):
        name, labels, value = one.name, one.labels, one.value
        if name == _CALLS:
            calls[labels.get("op", "")] += value
            errors += value if labels.get("result") == "error" else 0.0
        elif name == _UPLOADS:
            uploads[labels.get("outcome", "")] += value
        elif name == f"{_SECONDS}_count":
            slow += value
        elif name == f"{_SECONDS}_bucket" and _bound(labels) == SLOW_S:
            slow -= value
        elif name in _GAUGES:
            gauges[name] = value
    return GatewayReading(
        at_ns=at_ns, calls=calls, errors=errors, slow=slow, uploads=uploads, gauges=gauges
    )


def _is_read(line: str) -> bool:
    return not line.startswith(f"{_SECONDS}_bucket") or _SLOW_BOUND in line


def _bound(labels: Mapping[str, str]) -> float:
    return float(labels.get("le", "nan"))


def is_successor(earlier: GatewayReading, later: GatewayReading) -> bool:
    """Return True if no counter fell: the process of the earlier reading also sent the later."""
    pairs = ((earlier.calls, later.calls), (earlier.uploads, later.uploads))
    return all(new.get(name, 0.0) >= old for olds, new in pairs for name, old in olds.items())


def health_between(url: str, earlier: GatewayReading, later: GatewayReading) -> GatewayHealth:
    """Return the health of a gateway from two readings of one process.

    The earlier reading is some minutes old, or the later one if there is no other.
    """
    span_s = (later.at_ns - earlier.at_ns) / NS_PER_S
    uploads = {name: new - earlier.uploads.get(name, 0.0) for name, new in later.uploads.items()}
    refused = {name: count for name, count in uploads.items() if name not in _ACCEPTED}
    calls = sum(later.calls.values()) - sum(earlier.calls.values())
    return GatewayHealth(
        url=url,
        errors_per_s=(later.errors - earlier.errors) / span_s if span_s > 0 else None,
        refused=_share(sum(refused.values()), sum(uploads.values())),
        refused_as=max(refused, key=lambda name: refused[name], default=""),
        slow=_share(later.slow - earlier.slow, calls),
        journal_age_s=later.gauges.get("sluice_journal_age_seconds", 0.0),
        spool_full=_spool_full(later.gauges),
        principals_stale=later.gauges.get("sluice_principals_stale", 0.0) > 0,
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole >= COUNTED_MIN else 0.0


def _spool_full(gauges: Mapping[str, float]) -> str:
    stored = gauges.get("sluice_spool_bytes", 0.0)
    capacity = gauges.get("sluice_spool_capacity_bytes", 0.0)
    free = gauges.get("sluice_spool_free_bytes", 0.0)
    if capacity > 0 and stored / capacity > SPOOL_SHARE_MAX:
        return f"{stored / capacity:.0%} of its capacity is used"
    if gauges.get("sluice_spool_pending_batches", 0.0) > 0 and free < SPOOL_FREE_BYTES_MIN:
        return f"its disk has {free / 1e6:.0f} MB free"
    return ""


def samples_of(text: str, *names: str) -> list[Sample]:
    """Return the samples with these names, with their labels; other samples are not parsed."""
    return parse_samples(lines_of(text, *names))


def lines_of(text: str, *names: str) -> list[str]:
    """Return the lines of the samples with these names."""
    starts = tuple(f"{name}{end}" for name in names for end in (" ", "{"))
    return [line for line in text.splitlines() if line.startswith(starts)]


def parse_samples(lines: Iterable[str]) -> list[Sample]:
    """Return the samples of lines."""
    families: list[Metric] = list(text_string_to_metric_families("\n".join([*lines, ""])))
    return [sample for family in families for sample in family.samples]
