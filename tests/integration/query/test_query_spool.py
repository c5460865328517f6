"""Questions over a spool and its authority: accepted is found, once, wherever it stands."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.gateway import CountingStore
from support.query_lake import DAY0_NS, ask, bodies, log_batch, put_delete, question
from support.query_spool import Site, site
from support.spark_lake import Deployment, Sent
from support.spark_local import ingest_locally

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import RAW_BLOBS, blob_key
from sluice_protocol.outcomes import GetOutcome
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_query import search
from sluice_query.result import QueryResult
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_query.spool import attach_spool
from sluice_spark.failpoints import FAILPOINT_EXIT_CODE, FAILPOINT_VARIABLE
from sluice_store import open_store, read_authority

SPAN = ("--from", str(DAY0_NS), "--to", str(DAY0_NS + 3600 * NS_PER_S))
STEPS = (
    "read_spooled",
    "read_pending",
    "read_deletes",
    "read_ledger",
    "select_files",
    "prune_by_index",
    "choose_pending",
    "read_pending 2",
    "read_ledger 2",
    "choose_spooled",
    "fetch_batches",
)
"""The reads of one question, in their order; the second ones come only with a spool."""
TESTS = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path: Path) -> Site:
    return site(tmp_path)


def _found(here: Site, settings: QuerySettings | None = None) -> list[str]:
    answer = ask(here.place, question(), settings, here.spool)
    assert not answer.summary.partial, answer.summary.reasons
    return sorted(map(str, bodies(answer)))


def test_a_spooled_batch_is_found_once_at_each_stage(here: Site) -> None:
    """Accepted, landed, enqueued, ingested: once, and at first only with the spool."""
    batch = log_batch(["one", "two"])
    here.accept([batch])
    assert bodies(ask(here.place, question())) == []
    assert _found(here) == ["one", "two"]
    here.land()
    assert not (here.spool.root / blob_key(batch.manifest.digest)).exists()
    assert _found(here) == ["one", "two"]
    here.enqueue([batch])
    assert _found(here) == ["one", "two"]
    ingest_locally(here.place.url)
    assert _found(here) == ["one", "two"]
    assert ask(here.place, question(), None, here.spool).summary.waiting_batches == 0


def test_stages_beside_each_other_merge_in_time_order(here: Site) -> None:
    """Four batches at four stages make one answer; agents and text choose in each."""
    batches = [
        log_batch([f"stage {n}"], start=n, agent=f"host-{n}", from_ns=DAY0_NS + (9 - n) * NS_PER_S)
        for n in range(4)
    ]
    here.accept(batches[:1])
    here.land()
    here.enqueue(batches[:1])
    ingest_locally(here.place.url)
    here.accept(batches[1:2])
    here.land()
    here.enqueue(batches[1:2])
    here.accept(batches[2:3])
    here.land()
    here.accept(batches[3:])
    answer = ask(here.place, question(), None, here.spool)
    assert bodies(answer) == ["stage 3", "stage 2", "stage 1", "stage 0"]
    assert answer.summary.waiting_batches == 3
    for number in range(4):
        chosen = question(agents=(f"host-{number}",), text="stage")
        assert bodies(ask(here.place, chosen, None, here.spool)) == [f"stage {number}"]
    assert bodies(ask(here.place, question(kind="metrics"), None, here.spool)) == []


def test_deletes_apply_to_spooled_batches(here: Site) -> None:
    """A delete hides what was accepted until its cut-off, in the spool as elsewhere."""
    here.accept([log_batch(["secret", "plain"])])
    here.accept([log_batch(["secret late"], start=2, at_ns=DAY0_NS + NS_PER_S)])
    record = DeleteRecord(
        delete_id="0" * 26, kind="logs", accepted_until_unix_ns=DAY0_NS, contains="secret"
    )
    put_delete(here.place, record)
    assert _found(here) == ["plain", "secret late"]
    here.land()
    assert _found(here) == ["plain", "secret late"]


def _advance(here: Site, batch: Sent, end: str) -> None:
    """Carries a spooled batch on as far as `end`, from wherever it stands."""
    here.land()
    if end == "landed":
        return
    here.enqueue([batch])
    if end == "enqueued":
        return
    if end == "ingested":
        ingest_locally(here.place.url)
        return
    # A driver that died between its two commits: the records have it, the ledger has not.
    died = subprocess.run(
        (sys.executable, "-m", "support.spark_local", here.place.url),
        env=os.environ | {FAILPOINT_VARIABLE: "before_ledger", "PYTHONPATH": str(TESTS)},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert died.returncode == FAILPOINT_EXIT_CODE, died.stderr.decode()


def _move_before(monkeypatch: pytest.MonkeyPatch, step: str, move: Callable[[], None]) -> list[str]:
    """Lets the world move on right before one read of the next question."""
    name, _, nth = step.partition(" ")
    real: Any = getattr(search, name)
    visits: list[str] = []

    def moved(*arguments: Any) -> Any:
        visits.append(step)
        if len(visits) == int(nth or "1"):
            # Another thread, as this one may be inside an event loop.
            worker = threading.Thread(target=move)
            worker.start()
            worker.join()
        return real(*arguments)

    monkeypatch.setattr(search, name, moved)
    return visits


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("landed", marks=pytest.mark.long),
        pytest.param("enqueued", marks=pytest.mark.long),
        "ingested",
    ],
)
@pytest.mark.parametrize("step", STEPS)
def test_a_batch_that_moves_between_two_reads_is_found_once(
    here: Site, monkeypatch: pytest.MonkeyPatch, step: str, end: str
) -> None:
    """From the spool as far as the lake, between any two reads of a question: once, not partial."""
    old, batch = log_batch(["old"]), log_batch(["moving"], start=1)
    here.accept([old])
    _advance(here, old, "ingested")
    here.accept([batch])
    visits = _move_before(monkeypatch, step, lambda: _advance(here, batch, end))
    assert _found(here) == ["moving", "old"]
    assert len(visits) >= int(step.partition(" ")[2] or "1")


@pytest.mark.parametrize("step", STEPS[1:9])
def test_a_landed_batch_that_moves_between_two_reads_is_found_once(
    here: Site, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The same for one whose blob has left the spool before."""
    batch = log_batch(["moving"])
    here.accept([batch])
    here.land()
    _move_before(monkeypatch, step, lambda: _advance(here, batch, "ingested"))
    assert _found(here) == ["moving"]


@pytest.mark.parametrize("step", ["read_ledger", "select_files", "read_pending 2"])
def test_a_batch_between_the_two_commits_is_found_once(
    here: Site, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It enters the records and not yet the ledger, before and after the records are opened."""
    batch = log_batch(["moving"])
    here.accept([batch])
    _move_before(monkeypatch, step, lambda: _advance(here, batch, "records"))
    assert _found(here) == ["moving"]
    monkeypatch.undo()
    assert _found(here) == ["moving"]


@pytest.mark.parametrize("step", ["prune_by_index", "read_pending 2", "read_ledger 2"])
def test_a_batch_whose_ledger_row_comes_late_is_found_once(
    here: Site, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The opened records have it; its ledger row and its acknowledgement come at any later read."""
    batch = log_batch(["moving"])
    here.accept([batch])
    _move_before(monkeypatch, "select_files", lambda: _advance(here, batch, "records"))
    _move_before(monkeypatch, step, lambda: _ingest(here))
    assert _found(here) == ["moving"]


def _ingest(here: Site) -> None:
    ingest_locally(here.place.url)


class Landing(CountingStore):
    """The authority, on which everything lands right after a blob was asked of it."""

    here: Site

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        found = await super().get(key, first=first, last=last)
        if key.startswith(RAW_BLOBS):
            await asyncio.to_thread(self.here.land)
        return found


def test_a_blob_that_lands_while_it_is_read_is_found(here: Site) -> None:
    """The spool is asked first: asked last, it could have dropped what had not landed yet."""
    here.accept([log_batch(["moving"])])

    async def run() -> QueryResult:
        async with open_store(here.place.url) as store, open_store(here.spool.url) as local:
            landing = Landing(store)
            landing.here = here
            searcher = Searcher(
                store=landing,
                store_url=here.place.url,
                settings=QuerySettings(threads=2),
                clock=SystemClock(),
                spool=await attach_spool(local, await read_authority(store)),
            )
            return await searcher.search(question())

    answer = asyncio.run(run())
    assert (bodies(answer), answer.summary.reasons) == (["moving"], ())


def test_questions_beside_landing_and_ingestion_see_each_batch_once(here: Site) -> None:
    """While everything moves, whatever was accepted before is in every answer, once."""
    batches = [log_batch([f"line {n:02}"], start=n) for n in range(12)]
    here.accept(batches)

    def work() -> None:
        here.land()
        for one in batches:
            here.enqueue([one])
            ingest_locally(here.place.url, 1)

    mover = threading.Thread(target=work)
    mover.start()
    seen = set()
    while mover.is_alive():
        answer = ask(here.place, question(), None, here.spool)
        assert bodies(answer) == [f"line {n:02}" for n in range(12)]
        assert not answer.summary.partial, answer.summary.reasons
        seen.add(answer.summary.waiting_batches)
    mover.join()
    assert len(seen) > 2, seen


def test_a_spool_over_its_bound_makes_the_answer_partial(here: Site) -> None:
    """The newest manifests are read up to the bound, and the answer says what was left out."""
    for number in range(5):
        here.accept([log_batch([f"line {number}"], start=number)])
    settings = QuerySettings(tail_frames_max=2)
    answer = ask(here.place, question(), settings, here.spool)
    assert bodies(answer) == ["line 3", "line 4"]
    assert answer.summary.reasons[0].startswith("3 spooled batches were left out")


def test_what_landed_long_ago_is_not_looked_for(here: Site) -> None:
    """After `landed_s` the queue and the lake have it: the spool's past costs no reads."""
    old, new = log_batch(["old"]), log_batch(["new"], start=1)
    here.accept([old])
    here.land()
    here.accept([new])
    assert _found(here, QuerySettings(landed_s=0.0)) == ["new"]
    assert _found(here) == ["new", "old"]


def test_a_batch_that_the_authority_refused_is_not_shown(here: Site) -> None:
    """A conflict on landing: the authority's own batch is in the answer, ours is not."""
    here.accept([log_batch(["ours"])])
    theirs = log_batch(["theirs"])
    here.place.accept([theirs])
    here.land()
    assert _found(here) == []
    here.enqueue([theirs])
    assert _found(here) == ["theirs"]


def test_a_queue_that_is_not_read_whole_doubles_nothing(here: Site) -> None:
    """Where the queue cannot tell what was ingested, spooled batches are left out, aloud."""
    batches = [log_batch([f"line {n}"], start=n) for n in range(3)]
    here.accept(batches)
    here.land()
    for one in batches[:2]:
        here.enqueue([one])
    answer = ask(here.place, question(), QuerySettings(tail_lists_max=1), here.spool)
    assert bodies(answer) == ["line 1"]
    assert answer.summary.reasons[0].startswith("spooled batches were left out")


def test_a_damaged_blob_in_the_spool_is_named(here: Site) -> None:
    """Its answer is partial, the rest is shown."""
    wrong = log_batch(["wrong"])
    here.accept([wrong, log_batch(["good"], start=1)])
    here.spool.put_blob(wrong, b"other bytes")
    answer = ask(here.place, question(), None, here.spool)
    assert bodies(answer) == ["good"]
    assert "other bytes" in answer.summary.reasons[0]


def _command(here: Site, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "sluice_cli", "query", *words, "--store", here.place.url)


def test_the_command_takes_a_spool_that_stands(here: Site, tmp_path: Path) -> None:
    """The gateway's directory; a wrong name makes no empty one."""
    here.accept([log_batch(["hello"])])
    for url, code, says in (
        (here.spool.url, 0, "2026-09-21T14:13:20.000000000Z host-1 hello"),
        (f"file://{tmp_path}/gone", 2, "no spool stands there"),
    ):
        command = (*_command(here), "--spool", url, *SPAN)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == code, done.stderr
        assert says in " ".join((done.stdout + done.stderr).split())
    assert not (tmp_path / "gone").exists()


def test_the_service_takes_a_spool(here: Site) -> None:
    """What is spooled after the start of the service is found too."""
    command = _command(here, "serve")
    words = ("--spool", here.spool.url, "--listen", "127.0.0.1:0", "--json")
    with subprocess.Popen((*command, *words), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            here.accept([log_batch(["hello"])])
            span = f"from={DAY0_NS}&to={DAY0_NS + 10**12}"
            with urllib.request.urlopen(f"{url}/v1/query?{span}", timeout=60) as answer:
                lines = [json.loads(line) for line in answer.read().splitlines()]
        finally:
            process.send_signal(signal.SIGTERM)
    assert [line["body"] for line in lines[:-1]] == ["hello"]
    assert process.returncode == 0


def test_a_spool_of_another_authority_is_refused(here: Site, tmp_path: Path) -> None:
    """One line that says which to give; so is a directory in which nobody spooled."""
    other = Deployment(root=tmp_path / "other").init("B")
    with pytest.raises(BadUsage, match="belongs to another authority"):
        ask(here.place, question(), None, other)
    with pytest.raises(BadUsage, match="no gateway has spooled there"):
        ask(here.place, question(), None, Deployment(root=tmp_path / "empty"))
