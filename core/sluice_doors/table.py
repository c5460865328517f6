"""The table of doors. Importing it imports no decoder.

A protocol over HTTP has its decoders, requests and responses in the module that its line names,
which exports `ROUTES` and may export `probe_endpoints`. Routes, refusals of closed doors, options,
permissions, tokens and labels of metrics follow from this table.
"""

from dataclasses import dataclass
from typing import Final, Literal

DoorName = Literal[
    "otlp", "prometheus", "loki", "elasticsearch", "forward", "hec", "firehose", "json"
]
"""A protocol that clients other than sluice's agent speak; each has a line in `DOORS`."""
Method = Literal["POST", "PUT"]


@dataclass(frozen=True, slots=True)
class Door:
    """A protocol: its module in this package, empty without HTTP, and the paths for records."""

    module: str
    paths: tuple[str, ...]


_BULK: Final = ("/_bulk", "/{index}/_bulk")
_DOCUMENT: Final = ("/{index}/_doc", "/{index}/_doc/{id}", "/{index}/_create/{id}")
_SPLUNK: Final = ("", "/event", "/event/1.0", "/raw", "/raw/1.0")

DOORS: Final[dict[DoorName, Door]] = {
    "otlp": Door("otlp.http", ("/v1/logs", "/v1/metrics", "/v1/traces")),
    "json": Door("json.ingest", ("/v1/ingest", "/")),
    "prometheus": Door("prometheus.write", ("/api/v1/write",)),
    "loki": Door("loki.push", ("/loki/api/v1/push",)),
    "elasticsearch": Door("json.elasticsearch", (*_BULK, *_DOCUMENT)),
    "hec": Door("json.hec", tuple(f"/services/collector{path}" for path in _SPLUNK)),
    "firehose": Door("json.firehose", ("/v1/firehose",)),
    "forward": Door("", ()),
}
HTTP_DOORS: Final[tuple[DoorName, ...]] = tuple(name for name in DOORS if DOORS[name].module)


def methods_of(path: str) -> tuple[Method, ...]:
    """Return the methods with which clients send records to a path."""
    return ("POST", "PUT") if path.endswith(("/_bulk", "/{id}")) else ("POST",)
