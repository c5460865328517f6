"""What a sender reads that has the wrong path."""

import pytest

from sluice_doors.table import DOORS
from sluice_web.application import nearest_path

KNOWN = (
    *(path for door in DOORS.values() for path in door.paths),
    *("/", "/metrics", "/ready", "/readyz", "/loki/api/v1/labels", "/v1/batches"),
)


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/v1/logs/", "/v1/logs"),
        ("//v1/logs", "/v1/logs"),
        ("/v1/logs/v1/logs", "/v1/logs"),
        ("/otlp/v1/logs", "/v1/logs"),
        ("/api/prom/push", "/loki/api/v1/push"),
        ("/api/v1/push", "/loki/api/v1/push"),
        ("/loki/api/v1/push/", "/loki/api/v1/push"),
        ("/write", "/api/v1/write"),
        ("/ingest", "/v1/ingest"),
        ("/services/collector/event/", "/services/collector/event"),
        ("/services/collector/events", "/services/collector/event"),
        ("/web/log/_bulk", "/_bulk"),
        ("/web/_doc/", "/web/_doc"),
        ("/_bulk/", "/_bulk"),
        ("/web", ""),
        ("/", ""),
        ("/wp-login.php", ""),
        ("/" + "v1/logs/" * 100, ""),
    ],
)
def test_a_wrong_path_is_answered_with_the_one_that_was_meant(path: str, nearest: str) -> None:
    assert nearest_path(path, KNOWN) == nearest
