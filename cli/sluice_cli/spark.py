"""`sluice spark`: the Spark jobs of the lake."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter

from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit
from sluice_lake.delta import check_tables
from sluice_lake.errors import TableRefused
from sluice_protocol.errors import BadUsage, ExitCode, SluiceError
from sluice_spark.jvm import check_jvm, jvm_process, stop_session
from sluice_spark.session import Session, SessionSettings, open_session
from sluice_spark.settings import CompactSettings, IngestSettings

if TYPE_CHECKING:
    from rich.console import Console

app = App(name="spark", help="Run the Spark jobs of the lake.")

_INGEST = IngestSettings()
_COMPACT = CompactSettings()


@contextmanager
def _refused_as_bad_usage() -> Iterator[None]:
    """Exit with 2 for a table that the job cannot use: repeating the command cannot succeed."""
    try:
        yield
    except TableRefused as error:
        raise BadUsage(str(error)) from error


@contextmanager
def spark_session(store: str) -> Iterator[Session]:
    """Open a session for a job over the tables of a store, and stop it afterwards."""
    with _refused_as_bad_usage():
        check_tables(store)  # refuse before the JVM starts
        with _stopped_afterwards(open_session(SessionSettings(), delta=False)) as session:
            yield session


@contextmanager
def _stopped_afterwards(session: Session) -> Iterator[Session]:
    try:
        yield session
    except SluiceError:
        raise
    except Exception as error:
        check_jvm(jvm_process(session), error)
        raise
    finally:
        stop_session(session)


@app.command
def ingest(
    *,
    store: StoreUrl = STORE_DEFAULT,
    settings: Annotated[IngestSettings, Parameter(name="*")] = _INGEST,
    json: Json = False,
) -> int:
    """Move accepted batches into the lake, each exactly once.

    It consumes the queue `spark`. A newer ingest job fences an older one. Batches whose blob is
    missing or damaged go to the table `dead_letters`; they are ingested when they are enqueued
    again.
    """
    from sluice_spark.ingest.job import run_ingest  # noqa: PLC0415 - the import takes a second

    with _refused_as_bad_usage():
        totals = run_ingest(store, settings)

    def human(console: "Console") -> None:
        console.print(
            f"{totals.batches} batches, {totals.records} records in {totals.files} files"
            f" of {totals.rounds} micro-batches; {totals.dead_letters} dead letters"
        )

    emit(totals, as_json=json, human=human)
    return ExitCode.DONE.value


@app.command
def script(*, json: Json = False) -> int:
    """Print the path of the script for `spark-submit`, which runs the same commands.

    `spark-submit --master spark://head:7077 "$(sluice spark script)" spark ingest …`
    """
    path = str(Path(__file__).parent / "spark_submit" / "sluice_submit.py")
    # Not through the console, which would wrap a long path.
    sys.stdout.write(f"{msgspec.json.encode({'path': path}).decode() if json else path}\n")
    return ExitCode.DONE.value


@app.command
def compact(
    *,
    store: StoreUrl = STORE_DEFAULT,
    settings: Annotated[CompactSettings, Parameter(name="*")] = _COMPACT,
    json: Json = False,
) -> int:
    """Merge small files, drop duplicates and deleted rows, and remove old files.

    It may run concurrently with an ingest job, and at any frequency.
    """
    from sluice_spark.compaction.job import run_compact  # noqa: PLC0415 - the import takes a second

    with spark_session(store) as session:
        report = run_compact(session, store, settings)

    def human(console: "Console") -> None:
        console.print(
            f"{report.files_before} files before, {report.files_after} after;"
            f" {report.dropped_rows} rows dropped, of which {report.repetitions} repetitions,"
            f" {report.vacuumed} old files removed,"
            f" {report.merged} files of the ledger merged,"
            f" {report.conflicts} rewrites given up"
        )

    emit(report, as_json=json, human=human)
    return ExitCode.DONE.value


@app.command
def index(*, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """Write index chunks for new files of `logs`, with which text searches skip files.

    Chunks of files that no longer exist are removed.
    """
    from sluice_spark.index import run_index  # noqa: PLC0415 - the import takes a second

    with spark_session(store) as session:
        report = run_index(session, store)

    def human(console: "Console") -> None:
        console.print(
            f"{report.files} files, {report.indexed} new ones in {report.chunks} new chunks;"
            f" {report.chunks_removed} old chunks removed"
        )

    emit(report, as_json=json, human=human)
    return ExitCode.DONE.value


@app.command
def rollup(*, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """Aggregate metrics per minute and per hour, each point once."""
    from sluice_spark.rollups.job import run_rollup  # noqa: PLC0415 - the import takes a second

    with spark_session(store) as session:
        report = run_rollup(session, store)

    def human(console: "Console") -> None:
        console.print(f"{report.covers} covers, {report.rows} rows")

    emit(report, as_json=json, human=human)
    return ExitCode.DONE.value
