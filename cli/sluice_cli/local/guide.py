"""The lines that a new user pastes: send a line, a metric, an OTLP export, and where to look."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import Final

from sluice_cli.local.services import LocalService

LINE: Final = '{"message": "hello sluice"}'
METRIC: Final = (
    '{"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "demo_requests", "gauge":'
    ' {"dataPoints": [{"asDouble": 1}]}}]}]}]}'
)


def first_steps(
    services: Iterable[LocalService], addresses: Mapping[str, str], token: Path, query: str
) -> dict[str, str]:
    """Return what to paste, by purpose.

    `token` is the file, whose content is not printed; `query` is the start of a `sluice query`
    command that finds the store.
    """
    gateway = f"http://{addresses['gateway']}"
    bearer = f'-H "Authorization: Bearer $(cat {quote(str(token))})"'
    steps = {
        "send a line": f"curl {bearer} {gateway}/v1/ingest --data '{LINE}'",
        "send a metric": (
            f"curl {bearer} -H 'Content-Type: application/json' {gateway}/v1/metrics"
            f" --data '{METRIC}'"
        ),
        "send OTLP": (
            f"export OTEL_EXPORTER_OTLP_ENDPOINT={gateway}"
            " OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
            f' OTEL_EXPORTER_OTLP_HEADERS="Authorization=Bearer%20$(cat {quote(str(token))})"'
        ),
        "send by Fluent's forward protocol": (
            f"{addresses['forward']}, without a shared key: fluent-logger, Fluentd, Fluent Bit"
        ),
        "search": f"{query} -q hello",
        "plot": f"{query} --metric demo_requests",
    }
    for service in services:
        if service.page:
            steps[service.page] = f"http://{addresses[next(iter(service.ports))]}/"
    return steps
