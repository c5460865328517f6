"""`sluice retention`, `hold` and `erase`: recorded decisions, and one line for a bad one."""

import asyncio
import json
from pathlib import Path

import pytest
from support.commands import CommandResult, sluice

from sluice_protocol.erasure import SignedErasure, decide_erasure, erasure_key
from sluice_protocol.fields import KINDS
from sluice_protocol.manifests import encode_record
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_store import open_store


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/store"
    assert sluice("init", "--store", url).returncode == 0
    return url


def run(url: str, *words: str) -> CommandResult:
    return sluice(*words, "--store", url)


def test_decisions_are_recorded_and_shown(url: str) -> None:
    shown = run(url, "retention", "show").stdout
    assert shown.startswith("raw batches never expire: nothing was decided\n")
    assert run(url, "retention", "set", "--raw", "30d").returncode == 0
    placed = run(
        url, "hold", "add", "--case", "C-1", "--reason", "litigation", "--review", "2099-01-01",
        "--agent", "host-1", "--json",
    )  # fmt: skip
    hold_id = json.loads(placed.stdout)["hold_id"]
    shown = run(url, "retention", "show").stdout
    assert "may expire after 30 days, decided by operator:" in shown
    assert "holds: 1 in effect" in shown
    assert "may expire after 30 days" in (status := run(url, "status").stdout)
    assert "the next audit counts the older batches" in status
    assert "holds: C-1" in status
    assert hold_id in run(url, "hold", "list").stdout
    for words in (("delete",), ("erase", "run", "--reason", "r"), ("erase", "plan")):
        refused = run(url, *words, "--where", "agent = 'host-1'")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "case=`C-1`" in refused.stderr
    assert run(url, "hold", "lift", hold_id, "--reason", "settled").returncode == 0
    assert run(url, "delete", "--where", "agent = 'host-1'").returncode == 0
    assert run(url, "hold", "list").stdout == "no holds\n"


def test_config_show_has_the_recorded_decision_with_its_bytes(url: str, tmp_path: Path) -> None:
    def shown() -> dict[str, str]:
        done = run_config(url)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        return next(one for one in found if one["option"] == "--raw")

    assert shown()["origin"] == "default"
    assert run(url, "retention", "set", "--raw", "30d").returncode == 0
    assert shown()["value"] == "30d"
    assert "decided by operator:" in shown()["origin"]
    assert "the next audit counts the older batches" in shown()["origin"]
    audited = sluice("audit", "run", "--store", url, "--key-file", str(tmp_path / "key.pem"))
    assert audited.returncode == 0, audited.stderr
    text = "0 of the newest audit are older (0 B)"
    assert text in shown()["origin"]
    assert text in run(url, "retention", "show").stdout
    assert text in run(url, "status").stdout
    assert run(url, "retention", "set", "--raw", "never").returncode == 0
    assert shown()["value"] == "never"
    (tmp_path / "store" / "retention/v1/decisions/000002.json").write_text("{")
    assert shown()["origin"].startswith("not read: ")


def run_config(url: str) -> CommandResult:
    return sluice("config", "show", "retention", "--json", SLUICE_STORE=url)


def test_an_erasure_that_has_not_ended_in_a_month_is_an_error_of_the_status(url: str) -> None:
    late, recent = (record_erasure(url, days) for days in (31, 29))
    listed = run(url, "erase", "list", "--json")
    assert listed.returncode == 1
    states = {one["erasure_id"]: one["late"] for one in json.loads(listed.stdout)}
    assert states == {late: True, recent: False}
    assert "late" in run(url, "erase", "list").stdout
    status = run(url, "status")
    assert status.returncode == 1
    assert "1 erasure late" in status.stdout
    assert "sluice erase list" in status.stdout


def record_erasure(url: str, days: int) -> str:
    """Record the decision of an erasure that was made some days ago."""
    ids, day_ns = SystemIds(), 86_400 * NS_PER_S
    decision = decide_erasure(
        "agent = 'a'", (), (None, None), "r", erasure_id=ids.ulid(),
        delete_ids=[ids.ulid() for _ in KINDS], decided_by="operator:ann",
        now_ns=SystemClock().now_ns() - days * day_ns,
    )  # fmt: skip

    async def write() -> None:
        async with open_store(url) as store:
            signed = SignedErasure(decision=decision, key_id="", signature="")
            await store.create(erasure_key(decision.erasure_id), encode_record(signed))

    asyncio.run(write())
    return decision.erasure_id


def test_init_has_one_question_for_tables_and_raw_batches(tmp_path: Path) -> None:
    def init(place: str, *words: str) -> CommandResult:
        return sluice("init", "--store", f"file://{tmp_path}/{place}", *words)

    assert "kept permanently" in init("kept").stdout
    assert "nothing was decided" in run(f"file://{tmp_path}/kept", "retention", "show").stdout
    for _ in range(2):  # it may be repeated, as by a container that starts again
        done = init("ends", "--keep", "90d")
        assert (done.returncode, done.stderr) == (0, "")
        assert "tables end after 90d, raw batches after 90d" in done.stdout
    url = f"file://{tmp_path}/ends"
    shown = json.loads(run(url, "retention", "show", "--json").stdout)["rule"]
    assert (shown["number"], shown["raw_keep_s"], shown["tables_keep_s"]) == (
        1,
        90 * 86400,
        90 * 86400,
    )
    assert init("ends").returncode == 0  # without the question, the decision stays
    for words, message in (
        (("--keep", "60d"), "another decision about retention"),
        (("--keep", "never"), "another decision about retention"),
        (("--keep", "13d"), "use 14d or more"),
        (("--keep", "90"), "is a number of days"),
    ):
        refused = init("ends", *words)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert message in refused.stderr
    assert init("new", "--keep", "13d").returncode == 2
    assert not (tmp_path / "new").exists()
    assert run(url, "retention", "set", "--tables", "30d").returncode == 0
    text = "may expire after 90 days, records of tables are deleted after 30 days"
    assert text in run(url, "retention", "show").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("retention", "set"), "choose what ends"),
        (("retention", "set", "--tables", "0d"), "is a number of days"),
        (("retention", "set", "--raw", "13d"), "retry horizon plus 7 days"),
        (("retention", "set", "--raw", "soon"), "is a number of days"),
        (("hold", "add", "--case", "C", "--review", "2099-01-01"), "needs a reason"),
        (("hold", "add", "--reason", "R", "--review", "2099-01-01"), "needs a case"),
        (("hold", "add", "--case", "C", "--reason", "R"), "needs a review date"),
        (("hold", "add", "--case", "C", "--reason", "R", "--review", "2001-01-01"), "future"),
        (("hold", "lift", "nothing", "--reason", "R"), "no such hold"),
        (("erase", "plan"), "needs a filter"),
        (("erase", "run", "--reason", "R"), "needs a filter"),
        (("erase", "run", "--reason", "R", "--to", "2026-01-01T00:00:00Z"), "needs a filter"),
        (("erase", "run", "--where", "agent = 'a'"), "needs a reason"),
        (("erase", "run", "--reason", "R", "--where", "body contains ''"), "condition"),
        (("erase", "run", "--reason", "R", "--where", "x = 'a'"), "condition is not valid"),
        (("erase", "run", "--reason", "R", "--where", "agent = 'a'"), "nothing was ingested"),
        (("erase", "plan", "--where", "agent = 'a'"), "nothing was ingested"),
        (("erase", "run", "nothing"), "no such erasure"),
        (("erase", "run", "nothing", "--where", "agent = 'a'"), "without a filter"),
        (("erase", "report", "nothing"), "no such erasure"),
    ],
)
def test_bad_input_gets_one_line_and_records_nothing(
    url: str, words: tuple[str, ...], message: str
) -> None:
    done = run(url, *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
    assert "nothing was decided" in run(url, "retention", "show").stdout
    assert run(url, "hold", "list").stdout == "no holds\n"
