"""Queries over a spool and its authority: an accepted batch is found once, at every stage.

A spool and its authority: batches are accepted here and transferred there by the gateway.
"""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.commands import sluice
from support.constants import settings_with
from support.gateway import CountingStore, TestKey, write_principals
from support.query_lake import (
    DAY0_NS,
    bodies,
    log_batch,
    make_query,
    metric_batch,
    put_delete,
    run_query,
)
from support.sluice_process import SluiceProcess
from support.spark_lake import Deployment, Sent
from support.spark_local import ingest_locally, stop_at

from sluice_gateway.process.app import build_gateway
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.spool.claim import mirror_authority
from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import RAW_BLOBS, blob_key
from sluice_protocol.outcomes import GetOutcome
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_query import search
from sluice_query.pending import attach_spool
from sluice_query.result import QueryResult
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_store import StoreMode, create_authority, open_store, read_authority

WRITER = "spool-gw"
LANES = 2


@dataclass
class Site:
    """An authority, and the spool of its one gateway."""

    place: Deployment
    spool: Deployment

    def accept(self, batches: Sequence[Sent]) -> None:
        """Write to the spool what an upload writes."""
        self.spool.accept(batches)

    def transfer(self) -> None:
        """Transfer everything that is spooled."""
        asyncio.run(_transfer(self))

    def enqueue(self, batches: Sequence[Sent]) -> None:
        self.place.enqueue(batches)


def site(root: Path) -> Site:
    made = Site(
        place=Deployment(root=root / "store", lanes=LANES),
        spool=Deployment(root=root / "spool", lanes=LANES),
    )
    asyncio.run(_init(made))
    return made


async def _init(made: Site) -> None:
    agreed = Authority(
        authority_id="A" * 26, lanes=LANES, acceptance="local_spool", spool_writer=WRITER
    )
    async with (
        open_store(made.place.url, StoreMode.CREATE) as remote,
        open_store(made.spool.url, StoreMode.CREATE) as local,
    ):
        await create_authority(remote, agreed)
        await mirror_authority(local, remote, SystemClock())


async def _transfer(made: Site) -> None:
    principals = write_principals(made.spool.root / "p.toml", TestKey("host-1", ("host-1",)))
    settings = GatewaySettings(principals=principals, spool=made.spool.url)
    async with (
        open_store(made.spool.url, StoreMode.CREATE) as local,
        open_store(made.place.url, StoreMode.CREATE) as remote,
    ):
        agreed = (await mirror_authority(local, remote, SystemClock())).current
        gateway = build_gateway(local, agreed, settings, WRITER, transfers_to=remote)
        transfer = gateway.transfer
        assert transfer is not None
        await transfer.transfer_once()
        assert transfer.pending == 0


SPAN = ("--from", str(DAY0_NS), "--to", str(DAY0_NS + 3600 * NS_PER_S))
STEPS = (
    "read_coverage",
    "read_spooled",
    "read_pending",
    "read_active_deletes",
    "read_ingested",
    "select_files",
    "prune_by_index",
    "choose_pending",
    "read_pending 2",
    "read_ingested 2",
    "choose_unqueued",
    "fetch_batches",
)
"""The steps of one query in their order; those with a number happen only with a spool."""
DAILY = (
    "read_spooled",
    "read_pending",
    "read_ingested",
    "select_files",
    "read_pending 2",
    "read_ingested 2",
    "fetch_batches",
)
"""The steps that read what moves. Before another step, a move is one before the next of these."""


def _steps(steps: Sequence[str]) -> list[Any]:
    return [one if one in DAILY else pytest.param(one, marks=pytest.mark.long) for one in steps]


@pytest.fixture
def here(tmp_path: Path) -> Site:
    return site(tmp_path)


def _found(here: Site, settings: QuerySettings | None = None) -> list[str]:
    result = run_query(here.place, make_query(), settings, here.spool)
    assert not result.summary.partial, result.summary.reasons
    return sorted(map(str, bodies(result)))


def test_a_spooled_batch_is_found_once_at_each_stage(here: Site) -> None:
    """Accepted, transferred, enqueued, ingested; before the transfer only with the spool."""
    batch = log_batch(["one", "two"])
    here.accept([batch])
    assert bodies(run_query(here.place, make_query())) == []
    assert _found(here) == ["one", "two"]
    here.transfer()
    assert not (here.spool.root / blob_key(batch.manifest.digest)).exists()
    assert _found(here) == ["one", "two"]
    here.enqueue([batch])
    assert _found(here) == ["one", "two"]
    ingest_locally(here.place.url)
    assert _found(here) == ["one", "two"]
    assert run_query(here.place, make_query(), None, here.spool).summary.waiting_batches == 0


def test_batches_at_four_stages_are_merged_in_time_order(here: Site) -> None:
    batches = [
        log_batch([f"stage {n}"], start=n, agent=f"host-{n}", from_ns=DAY0_NS + (9 - n) * NS_PER_S)
        for n in range(4)
    ]
    here.accept(batches[:1])
    here.transfer()
    here.enqueue(batches[:1])
    ingest_locally(here.place.url)
    here.accept(batches[1:2])
    here.transfer()
    here.enqueue(batches[1:2])
    here.accept(batches[2:3])
    here.transfer()
    here.accept(batches[3:])
    result = run_query(here.place, make_query(), None, here.spool)
    assert bodies(result) == ["stage 3", "stage 2", "stage 1", "stage 0"]
    assert result.summary.waiting_batches == 3
    for number in range(4):
        chosen = make_query(agents=(f"host-{number}",), text="stage")
        assert bodies(run_query(here.place, chosen, None, here.spool)) == [f"stage {number}"]
    assert bodies(run_query(here.place, make_query(kind="metrics"), None, here.spool)) == []


def test_deletes_apply_to_spooled_batches(here: Site) -> None:
    """A delete hides records that were accepted until its cut-off."""
    here.accept([log_batch(["secret", "plain"])])
    here.accept([log_batch(["secret late"], start=2, at_ns=DAY0_NS + NS_PER_S)])
    record = DeleteRecord(
        delete_id="0" * 26, kind="logs", accepted_until_unix_ns=DAY0_NS, contains="secret"
    )
    put_delete(here.place, record)
    assert _found(here) == ["plain", "secret late"]
    here.transfer()
    assert _found(here) == ["plain", "secret late"]


def _advance(here: Site, batch: Sent, end: str) -> None:
    """Move a spooled batch from its current stage to `end`."""
    here.transfer()
    if end == "transferred":
        return
    here.enqueue([batch])
    if end == "enqueued":
        return
    if end == "ingested":
        ingest_locally(here.place.url)
        return
    # The driver stops between its two commits: the batch is in the records, not in the ledger.
    stop_at(here.place.url, "before_ledger")


def _move_before(monkeypatch: pytest.MonkeyPatch, step: str, move: Callable[[], None]) -> list[str]:
    """Call `move` immediately before one step of the next query."""
    name, _, nth = step.partition(" ")
    real: Any = getattr(search, name)
    visits: list[str] = []

    def moved(*arguments: Any, **named: Any) -> Any:
        visits.append(step)
        if len(visits) == int(nth or "1"):
            # In another thread, because this one may run an event loop.
            worker = threading.Thread(target=move)
            worker.start()
            worker.join()
        return real(*arguments, **named)

    monkeypatch.setattr(search, name, moved)
    return visits


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "end",
    [
        pytest.param("transferred", marks=pytest.mark.long),
        pytest.param("enqueued", marks=pytest.mark.long),
        "ingested",
    ],
)
@pytest.mark.parametrize("step", _steps(STEPS))
def test_a_batch_that_moves_between_two_reads_is_found_once(
    here: Site, monkeypatch: pytest.MonkeyPatch, step: str, end: str
) -> None:
    """It moves to a later stage before one read of the query; the result is complete."""
    old, batch = log_batch(["old"]), log_batch(["moving"], start=1)
    here.accept([old])
    _advance(here, old, "ingested")
    here.accept([batch])
    visits = _move_before(monkeypatch, step, lambda: _advance(here, batch, end))
    assert _found(here) == ["moving", "old"]
    assert len(visits) >= int(step.partition(" ")[2] or "1")


@pytest.mark.daily(1)
@pytest.mark.parametrize("step", _steps(STEPS[2:10]))
def test_a_transferred_batch_that_moves_between_two_reads_is_found_once(
    here: Site, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its blob is no longer in the spool."""
    batch = log_batch(["moving"])
    here.accept([batch])
    here.transfer()
    _move_before(monkeypatch, step, lambda: _advance(here, batch, "ingested"))
    assert _found(here) == ["moving"]


@pytest.mark.parametrize("step", ["read_spooled", "read_pending"])
def test_a_batch_that_leaves_the_bounds_of_the_spool_is_found_in_the_queue(
    here: Site, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The spool is listed before the queue: what the listing omits was enqueued earlier."""
    batch = log_batch(["moving"])
    here.accept([batch])
    _move_before(monkeypatch, step, lambda: _advance(here, batch, "enqueued"))
    assert _found(here, settings_with(QuerySettings, transferred_s=0.0)) == ["moving"]


@pytest.mark.daily(1)
@pytest.mark.parametrize("step", ["read_ingested", "select_files", "read_pending 2"])
def test_a_batch_between_the_two_commits_is_found_once(
    here: Site, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It is in the records and not in the ledger, before or after the records are opened."""
    batch = log_batch(["moving"])
    here.accept([batch])
    _move_before(monkeypatch, step, lambda: _advance(here, batch, "records"))
    assert _found(here) == ["moving"]
    monkeypatch.undo()
    assert _found(here) == ["moving"]


@pytest.mark.daily(1)
@pytest.mark.parametrize("step", ["prune_by_index", "read_pending 2", "read_ingested 2"])
def test_a_batch_whose_ledger_row_is_late_is_found_once(
    here: Site, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It is in the opened records; ledger row and acknowledgement follow before a later read."""
    batch = log_batch(["moving"])
    here.accept([batch])
    _move_before(monkeypatch, "select_files", lambda: _advance(here, batch, "records"))
    _move_before(monkeypatch, step, lambda: _ingest(here))
    assert _found(here) == ["moving"]


@pytest.mark.parametrize("step", ["prune_by_index", "select_files"])
def test_what_is_ingested_after_the_early_opening_is_found_once(
    here: Site, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The tables exist and are open when the batch is ingested, before or after the queue is read.

    The first look-up in the index follows the opening of the tables.
    """
    here.accept([log_batch(["before"])])
    _advance(here, log_batch(["before"]), "ingested")
    batch = log_batch(["moving"], start=1)
    here.accept([batch])
    visits = _move_before(monkeypatch, step, lambda: _advance(here, batch, "ingested"))
    assert _found(here) == ["before", "moving"]
    assert len(visits) == (2 if step == "prune_by_index" else 1)


def _ingest(here: Site) -> None:
    ingest_locally(here.place.url)


class TransferringStore(CountingStore):
    """The authority, to which everything is transferred immediately after a blob is read."""

    here: Site

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        found = await super().get(key, first=first, last=last)
        if key.startswith(RAW_BLOBS):
            await asyncio.to_thread(self.here.transfer)
        return found


def test_a_blob_that_is_transferred_while_it_is_read_is_found(here: Site) -> None:
    """The spool is read first. Read last, it could have deleted what was not transferred before."""
    here.accept([log_batch(["moving"])])

    async def run() -> QueryResult:
        async with open_store(here.place.url) as store, open_store(here.spool.url) as local:
            transferring = TransferringStore(store)
            transferring.here = here
            searcher = Searcher(
                store=transferring,
                store_url=here.place.url,
                settings=QuerySettings(threads=2),
                clock=SystemClock(),
                spool=await attach_spool(local, await read_authority(store)),
            )
            return await searcher.search(make_query())

    result = asyncio.run(run())
    assert (bodies(result), result.summary.reasons) == (["moving"], ())


def test_every_query_during_transfer_and_ingestion_returns_every_record_once(here: Site) -> None:
    batches = [log_batch([f"line {n:02}"], start=n) for n in range(5)]
    here.accept(batches)

    def work() -> None:
        here.transfer()
        for one in batches:
            here.enqueue([one])
            ingest_locally(here.place.url, 1)

    mover = threading.Thread(target=work)
    mover.start()
    seen = set()
    while mover.is_alive():
        result = run_query(here.place, make_query(), None, here.spool)
        assert bodies(result) == [f"line {n:02}" for n in range(5)]
        assert not result.summary.partial, result.summary.reasons
        seen.add(result.summary.waiting_batches)
    mover.join()
    assert len(seen) > 2, seen


def test_a_spool_over_its_bound_makes_the_result_partial(here: Site) -> None:
    """The newest manifests are read; the reason contains the number of those left out."""
    for number in range(5):
        here.accept([log_batch([f"line {number}"], start=number)])
    settings = settings_with(QuerySettings, tail_frames_max=2)
    result = run_query(here.place, make_query(), settings, here.spool)
    assert bodies(result) == ["line 3", "line 4"]
    assert result.summary.reasons[0].startswith("3 older spooled batches were left out")


def test_batches_transferred_long_ago_are_not_read_from_the_spool(here: Site) -> None:
    """By then they are in the queue or in the lake; here only the journal names one."""
    old, new = log_batch(["old"]), log_batch(["new"], start=1)
    here.accept([old])
    here.transfer()
    here.accept([new])
    result = run_query(
        here.place, make_query(), settings_with(QuerySettings, transferred_s=0.0), here.spool
    )
    assert bodies(result) == ["old", "new"]
    assert not result.summary.partial
    shutil.rmtree(here.place.root / "gateways")
    # Now it is in neither, and the answer is partial.
    result = run_query(
        here.place, make_query(), settings_with(QuerySettings, transferred_s=0.0), here.spool
    )
    assert bodies(result) == ["new"]
    assert "not enqueued" in result.summary.reasons[0]
    assert _found(here) == ["new", "old"]


def test_a_batch_that_conflicts_with_the_authority_is_not_returned(here: Site) -> None:
    """The authority's batch of that identity is returned instead."""
    here.accept([log_batch(["ours"])])
    theirs = log_batch(["theirs"])
    here.place.accept([theirs])
    here.transfer()
    result = run_query(here.place, make_query(), None, here.spool)
    assert bodies(result) == []
    assert "not enqueued" in result.summary.reasons[0]
    here.enqueue([theirs])
    assert _found(here) == ["theirs"]


def test_an_incomplete_reading_of_the_queue_duplicates_nothing(here: Site) -> None:
    """Spooled batches that may be in the lake are left out, with a reason."""
    batches = [log_batch([f"line {n}"], start=n) for n in range(3)]
    here.accept(batches)
    here.transfer()
    for one in batches[:2]:
        here.enqueue([one])
    result = run_query(
        here.place, make_query(), settings_with(QuerySettings, tail_lists_max=1), here.spool
    )
    assert bodies(result) == ["line 1"]
    assert result.summary.reasons[0].startswith("batches that are not enqueued yet were left out")


def test_a_damaged_blob_in_the_spool_makes_the_result_partial(here: Site) -> None:
    """The other records are returned."""
    wrong = log_batch(["wrong"])
    here.accept([wrong, log_batch(["good"], start=1)])
    here.spool.put_blob(wrong, b"other bytes")
    result = run_query(here.place, make_query(), None, here.spool)
    assert bodies(result) == ["good"]
    assert "other bytes" in result.summary.reasons[0]


def test_the_command_reads_an_existing_spool(here: Site, tmp_path: Path) -> None:
    """A missing directory is refused and not created."""
    here.accept([log_batch(["hello"])])
    for url, code, message in (
        (here.spool.url, 0, "14:13:20.000 - web hello"),
        (
            f"file://{tmp_path}/gone",
            2,
            "no spool of a gateway here; pass the value of the gateway's `--spool`",
        ),
    ):
        done = sluice("query", "--store", here.place.url, "--spool", url, *SPAN)
        assert done.returncode == code, done.stderr
        assert message in " ".join((done.stdout + done.stderr).split())
    assert not (tmp_path / "gone").exists()


@pytest.mark.long
def test_sql_reads_a_spool_once_at_each_stage(here: Site) -> None:
    """Records and batches: accepted, transferred, enqueued, ingested."""
    batch, other = log_batch(["secret", "plain"]), metric_batch([1.0, 2.0], start=2)
    here.accept([batch, other])
    record = DeleteRecord(
        delete_id="0" * 26, kind="logs", accepted_until_unix_ns=DAY0_NS, contains="secret"
    )
    put_delete(here.place, record)
    text = (
        "SELECT (SELECT list(body) FROM logs), (SELECT sum(value) FROM metrics),"
        " list({'n': record_count, 'l': in_lake} ORDER BY seq_start) FROM batches"
    )

    def rows() -> list[str]:
        given = ("--store", here.place.url, "--spool", here.spool.url, "--output", "csv")
        done = sluice("sql", text, *given)
        assert (done.returncode, "partial" in done.stderr) == (0, False), done.stderr
        return done.stdout.splitlines()[1:]

    def expected(in_lake: str) -> list[str]:
        parts = f'[{{""n"":2,""l"":{in_lake}}},{{""n"":2,""l"":{in_lake}}}]'
        return [f'"[""plain""]",3.0,"{parts}"']

    assert rows() == expected("false")
    here.transfer()
    assert rows() == expected("false")
    here.enqueue([batch, other])
    assert rows() == expected("false")
    ingest_locally(here.place.url)
    assert rows() == expected("true")


def test_sql_with_a_spool_reads_no_file_of_it(here: Site) -> None:
    here.accept([log_batch(["hello"])])
    given = ("--store", here.place.url, "--spool", here.spool.url)
    for source in (f"'{here.spool.root}/x.parquet'", f"read_text('{here.spool.root}/**')"):
        done = sluice("sql", f"FROM {source}", *given)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
    gone = sluice("sql", "SELECT 1", "--store", here.place.url, "--spool", "file:///no/spool")
    assert (gone.returncode, len(gone.stderr.splitlines())) == (2, 1)


def test_the_service_reads_batches_spooled_after_its_start(here: Site) -> None:
    command = (sys.executable, "-m", "sluice_cli", "query", "serve", "--store", here.place.url)
    options = ("--spool", here.spool.url, "--listen", "127.0.0.1:0", "--json")
    with SluiceProcess((*command, *options), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            here.accept([log_batch(["hello"])])
            span = f"from={DAY0_NS}&to={DAY0_NS + 10**12}"
            with urllib.request.urlopen(f"{url}/v1/query?{span}", timeout=60) as result:
                lines = [json.loads(line) for line in result.read().splitlines()]
        finally:
            process.send_signal(signal.SIGTERM)
    assert [line["body"] for line in lines[:-1]] == ["hello"]
    assert process.returncode == 0


def test_a_spool_of_another_authority_is_refused(here: Site, tmp_path: Path) -> None:
    """So is a directory without a spool."""
    other = Deployment(root=tmp_path / "other").init("B")
    with pytest.raises(BadUsage, match="belongs to another authority"):
        run_query(here.place, make_query(), None, other)
    with pytest.raises(BadUsage, match="no gateway has spooled there"):
        run_query(here.place, make_query(), None, Deployment(root=tmp_path / "empty"))
