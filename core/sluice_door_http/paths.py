"""The paths to which clients send records, by door; importing this module imports no decoder."""

from typing import Final, Literal

from sluice_protocol.request_identity import DoorName

Method = Literal["POST", "PUT"]

OTLP_LOGS_PATH: Final = "/v1/logs"
OTLP_METRICS_PATH: Final = "/v1/metrics"
INGEST_PATH: Final = "/v1/ingest"
WRITE_PATH: Final = "/api/v1/write"
PUSH_PATH: Final = "/loki/api/v1/push"
BULK_PATHS: Final = ("/_bulk", "/{index}/_bulk")
DOCUMENT_PATHS: Final = ("/{index}/_doc", "/{index}/_doc/{id}", "/{index}/_create/{id}")
BULK_METHODS: Final[tuple[Method, ...]] = ("POST", "PUT")
COLLECTOR_PATH: Final = "/services/collector"
EVENT_PATHS: Final = tuple(COLLECTOR_PATH + path for path in ("", "/event", "/event/1.0"))
RAW_PATHS: Final = tuple(COLLECTOR_PATH + path for path in ("/raw", "/raw/1.0"))
FIREHOSE_PATH: Final = "/v1/firehose"
USUAL_METHODS: Final[tuple[Method, ...]] = ("POST",)

DOOR_PATHS: Final[dict[DoorName, tuple[str, ...]]] = {
    "otlp": (OTLP_LOGS_PATH, OTLP_METRICS_PATH),
    "json": (INGEST_PATH,),
    "prometheus": (WRITE_PATH,),
    "loki": (PUSH_PATH,),
    "elasticsearch": (*BULK_PATHS, *DOCUMENT_PATHS),
    "hec": (*EVENT_PATHS, *RAW_PATHS),
    "firehose": (FIREHOSE_PATH,),
}
"""The paths of each door over HTTP."""


def methods_of(path: str) -> tuple[Method, ...]:
    """Return the methods with which clients send records to a path."""
    named = path in BULK_PATHS or path.endswith("/{id}")
    return BULK_METHODS if named else USUAL_METHODS
