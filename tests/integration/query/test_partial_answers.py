"""Every kind of answer states every reason for which it may be incomplete."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.constants import settings_with
from support.query_lake import (
    DAY0_NS,
    JournalWriter,
    deployment,
    log_batch,
    make_query,
    metric_batch,
)
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.journals import GatewayProcess, process_name, registration_key
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.following import follow
from sluice_query.http.download_api import Export, export_records
from sluice_query.request import (
    FieldList,
    Histogram,
    Neighbourhood,
    Query,
    Series,
    TopValues,
    parse_field,
)
from sluice_query.result import QuerySummary
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_query.streaming import stream_search
from sluice_reconciler.app import run_once
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store import open_store

AGENT = "host-1"
DAY_NS = 86_400 * NS_PER_S


def reconcile(place: Deployment) -> None:
    asyncio.run(run_once(place.url, ReconcilerSettings()))


UNLISTED = settings_with(QuerySettings, threads=2, accepted_list_max=0)


async def _search(searcher: Searcher, query: Query) -> QuerySummary:
    return (await searcher.search(query)).summary


async def _stream(searcher: Searcher, query: Query) -> QuerySummary:
    parts = [part async for part in stream_search(searcher, query)]
    assert parts[-1].summary is not None
    return parts[-1].summary


async def _follow(searcher: Searcher, query: Query) -> QuerySummary:
    async for found in follow(searcher.search, searcher.clock, query):
        return found.summary
    raise AssertionError


async def _export(searcher: Searcher, query: Query, form: str) -> QuerySummary:
    export = Export(query=query, limit=10, format=form)  # type: ignore[arg-type]
    parts = [part async for part in export_records(searcher, export)]
    assert parts[-1].summary is not None
    return parts[-1].summary


SERIES = Series(metric="cpu", step_ns=DAY_NS)
DELETE = DeleteRecord(delete_id="0" * 26, kind="logs", accepted_until_unix_ns=2**62, contains="a")
LOGS: dict[str, dict[str, object]] = {
    "records": {},
    "newest first": {"newest_first": True},
    "count": {"stats_only": True},
    "histogram": {"view": Histogram(step_ns=DAY_NS)},
    "fields": {"view": FieldList()},
    "top": {"view": TopValues(field=parse_field("body", "logs"))},
    "delete, dry run": {"deleting": DELETE},
}
METRICS: dict[str, dict[str, object]] = {
    "series": {"kind": "metrics", "series": SERIES},
    "series, raw": {"kind": "metrics", "series": replace(SERIES, raw=True)},
}


async def _answers(
    place: Deployment, query: Query, settings: QuerySettings
) -> dict[str, tuple[bool, tuple[str, ...]]]:
    """Return, for each kind of answer, whether it is partial, and the reasons."""
    async with open_store(place.url) as store:
        searcher = Searcher(
            store=store, store_url=place.url, settings=settings, clock=SystemClock()
        )
        whole = {
            name: await _search(searcher, replace(query, **changes))  # type: ignore[arg-type]
            for name, changes in (LOGS | METRICS).items()
        }
        around = Neighbourhood(boot_id=log_batch(["a"]).manifest.boot_id, seq=0)
        whole["context"] = await _search(searcher, replace(query, view=around, agents=(AGENT,)))
        whole["stream"] = await _stream(searcher, query)
        whole["follow"] = await _follow(searcher, query)
        for form in ("ndjson", "parquet"):
            whole[f"export, {form}"] = await _export(searcher, query, form)
        return {name: (one.partial, one.reasons) for name, one in whole.items()}


def _killed_gateway(place: Deployment) -> str:
    """A gateway reported 20 s ago, and its last batch is in no journal."""
    gateway = JournalWriter(place=place)
    reported = UnixNs(gateway.now_ns() - 20 * NS_PER_S)
    gateway.process = process_name(reported, "0" * 26)
    registration = GatewayProcess(
        collector_id="gw-1",
        process=gateway.process,
        acceptance="s3_manifest",
        started_at_unix_ns=reported,
    )
    gateway.put(registration_key(gateway.process), encode_record(registration))
    gateway.publish(age_s=20)
    place.accept([log_batch(["lost"], start=50), metric_batch([1.0], start=55)])
    return "gateway gw-1"


def _held_batch(place: Deployment) -> str:
    place.accept([log_batch(["x"], start=60), metric_batch([1.0], start=70)], blobs=False)
    reconcile(place)
    return "held back"


def _lost_register(place: Deployment) -> str:
    for register in (place.root / "queue").rglob("manifest*"):
        register.unlink()
    return "the register of lane"


def _no_discovery(place: Deployment) -> str:
    (place.root / "reconciler/v1/discovery.json").unlink()
    return "no recent full pass"


def _tables(place: Deployment) -> list[Path]:
    return [place.root / "lake/v1" / name for name in ("logs", "metrics")]


def _truncated_log(place: Deployment) -> str:
    for table in _tables(place):
        last = max((table / "_delta_log").glob("*.json"))
        last.unlink()
        for checksum in (table / "_delta_log").glob("*.crc"):
            checksum.unlink()
    return "lost commits"


def _missing_table(place: Deployment) -> str:
    for table in _tables(place):
        shutil.rmtree(table)
    return "is missing, older than the queue"


def _older_ledger(place: Deployment) -> str:
    shutil.rmtree(place.root / "lake/v1/batches")
    return "table `batches` is missing"


def _missing_file(place: Deployment) -> str:
    for table in _tables(place):
        next(table.rglob("*.parquet")).unlink()
    return "data file is missing: restore this file"


def _shorter_file(place: Deployment) -> str:
    for table in _tables(place):
        path = next(table.rglob("*.parquet"))
        path.write_bytes(path.read_bytes()[:-20])
    return "bytes instead of"


REASONS: list[tuple[Callable[[Deployment], str], QuerySettings]] = [
    (_killed_gateway, UNLISTED),
    (_killed_gateway, QuerySettings(threads=2)),
    (_held_batch, QuerySettings(threads=2)),
    (_lost_register, QuerySettings(threads=2)),
    (_no_discovery, UNLISTED),
    (_truncated_log, QuerySettings(threads=2)),
    (_missing_table, QuerySettings(threads=2)),
    (_older_ledger, QuerySettings(threads=2)),
    (_missing_file, QuerySettings(threads=2)),
    (_shorter_file, QuerySettings(threads=2)),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    place = deployment(tmp_path_factory.mktemp("whole"))
    place.accept([log_batch(["a", "b"]), metric_batch([1.0, 2.0], start=10)])
    reconcile(place)
    ingest_locally(place.url)
    return place


def _copy(whole: Deployment, root: Path) -> Deployment:
    shutil.copytree(whole.root, root / "store")
    return replace(whole, root=root / "store")


def _present() -> Query:
    return make_query(from_ns=UnixNs(DAY0_NS), to_ns=UnixNs(DAY0_NS + 3650 * DAY_NS))


def test_every_kind_of_answer_is_whole_without_a_reason(whole: Deployment) -> None:
    found = asyncio.run(_answers(whole, _present(), QuerySettings(threads=2)))
    assert {name: reasons for name, (partial, reasons) in found.items() if partial} == {}


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("break_it", "settings"),
    REASONS,
    ids=[f"{one.__name__}-{settings.accepted_list_max}" for one, settings in REASONS],
)
def test_every_kind_of_answer_names_the_reason(
    whole: Deployment,
    tmp_path: Path,
    break_it: Callable[[Deployment], str],
    settings: QuerySettings,
) -> None:
    place = _copy(whole, tmp_path)
    expected = break_it(place)
    found = asyncio.run(_answers(place, _present(), settings))
    silent = {
        name: reasons
        for name, (partial, reasons) in found.items()
        if not partial or not any(expected in one for one in reasons)
    }
    assert silent == {}


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", ["records", "count", "series", "stream"])
def test_other_files_are_answered_from_if_one_is_damaged(
    whole: Deployment, tmp_path: Path, kind: str
) -> None:
    """Its size is right, so that only reading it shows the damage."""
    place = _copy(whole, tmp_path)
    place.accept([log_batch(["c"], start=20), metric_batch([3.0], start=30)])
    reconcile(place)
    ingest_locally(place.url)
    broken = []
    for table in _tables(place):
        path = min(table.rglob("*.parquet"), key=lambda one: one.stat().st_mtime)
        body = bytearray(path.read_bytes())
        body[4:400] = bytes(one ^ 0x5A for one in body[4:400])
        path.write_bytes(bytes(body))
        broken.append(path.name)

    async def ask() -> QuerySummary:
        async with open_store(place.url) as store:
            searcher = Searcher(
                store=store,
                store_url=place.url,
                settings=QuerySettings(threads=2),
                clock=SystemClock(),
            )
            if kind == "stream":
                return await _stream(searcher, _present())
            changes = (LOGS | METRICS)[kind]
            return await _search(searcher, replace(_present(), **changes))  # type: ignore[arg-type]

    summary = asyncio.run(ask())
    assert summary.results == 1
    assert summary.partial
    assert any("is damaged" in one and name in one for one in summary.reasons for name in broken)
