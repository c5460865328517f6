"""`sluice spark`: the pipeline's jobs."""

import sys
from typing import Annotated

import structlog
from cyclopts import App, Parameter
from rich.console import Console

from sluice_cli.common import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit
from sluice_spark.settings import IngestSettings

app = App(name="spark", help="Run the pipeline's jobs.")

_INGEST = IngestSettings()


def log_to_stderr() -> None:
    """Sends events to standard error, so that standard output holds the result alone."""
    person = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer() if person else structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


@app.command
def ingest(
    *,
    store: StoreUrl = STORE_DEFAULT,
    settings: Annotated[IngestSettings, Parameter(name="*")] = _INGEST,
    json: Json = False,
) -> int:
    """Carries accepted batches into the lake, each exactly once.

    It consumes the queue `spark`. A newer ingest job fences an older one off. Batches whose blob is
    missing or wrong go to the table `dead_letters` and come in when they are enqueued again.
    """
    from sluice_spark.ingest import run_ingest  # noqa: PLC0415 - takes a second to import

    log_to_stderr()
    totals = run_ingest(store, settings)

    def human(console: Console) -> None:
        console.print(
            f"{totals.batches} batches, {totals.records} records in {totals.files} files"
            f" of {totals.rounds} micro-batches; {totals.dead_letters} dead letters"
        )

    emit(totals, as_json=json, human=human)
    return 0
