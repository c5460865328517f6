"""`sluice columns`: an operator checks, promotes and lists attributes; queries stay the same."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.commands import CommandResult, sluice
from support.query_lake import log_batch
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S


def deliver(place: Deployment, start: int, statuses: Sequence[str]) -> None:
    now_ns = SystemClock().now_ns() - 600 * NS_PER_S
    for number, status in enumerate(statuses, start):
        batch = log_batch(
            ["GET /"],
            start=number,
            from_ns=now_ns + number * NS_PER_S,
            at_ns=now_ns,
            attributes={"http.status": status} if status else {},
        )
        place.deliver([batch])


def columns(place: Deployment, *words: str) -> CommandResult:
    return sluice("columns", *words, "--store", place.url)


def found(place: Deployment, *words: str) -> list[object]:
    done = sluice("query", *words, "--json", "--store", place.url)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [{k: v for k, v in one.items() if k != "summary"} for one in lines]


def test_an_operator_promotes_an_attribute_and_every_answer_stays(tmp_path: Path) -> None:
    """Over files with and without the column, and over batches that are not ingested yet."""
    place = Deployment(tmp_path, lanes=1).init()
    deliver(place, 0, ["500", "200", "", "5e2"])
    ingest_locally(place.url)
    checked = columns(place, "check", "logs", "attributes.http.status", "integer")
    assert checked.returncode == 1
    assert checked.stdout.splitlines() == [
        "attributes.http.status would be the column attr_http_status, type integer",
        "  3 of the 4 newest records of 7 days have it, 75%",
        "  2 of these convert, 67%",
        "  does not convert: '5e2'",
    ]
    assert columns(place, "list").stdout == "no attribute is promoted\n"
    for _ in range(2):
        added = columns(place, "add", "logs", "attributes.http.status", "integer")
        assert (added.returncode, added.stdout) == (
            0,
            "attributes.http.status is promoted: logs have the column attr_http_status\n",
        )
    (one,) = json.loads(columns(place, "list", "--json").stdout)["columns"]
    assert (one["column"], one["type"], one["key"]) == (
        "attr_http_status",
        "integer",
        "http.status",
    )
    deliver(place, 4, ["500", "x", "", "200"])
    ingest_locally(place.url)
    assert "attr_http_status" in place.rows("logs")[0]
    deliver(place, 8, ["500", ""])
    counts = {
        '{http_status="500"}': 3,
        '{http_status!="500"}': 7,
        '{http_status="x"}': 1,
        '{http_status="7"}': 0,
        "{} | http_status >= 500": 5,  # a text that is no number is kept, with an error
        '{} | http_status >= 500 | __error__=""': 4,
        '{http_status!=""}': 7,
        '{http_status=""}': 3,
    }
    for condition, count in counts.items():
        assert len(found(place, condition)) == count + 1, condition


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("logs http.status text", "name it attributes.KEY or resource.KEY"),
        ("entries attributes.k text", "entries have no attributes"),
        ("logs attributes.k text body", "is named attr_"),
        ("logs attributes.k-1 text attr_k_2", "another attribute has this column"),
        ("logs attributes.k.2 float", "is promoted already"),
    ],
)
def test_a_promotion_that_is_not_possible_is_refused_in_one_line(
    tmp_path: Path, words: str, reason: str
) -> None:
    place = Deployment(tmp_path, lanes=1).init()
    assert columns(place, "add", "logs", "attributes.k.2", "text").returncode == 0
    for command in ("add", "check"):
        done = columns(place, command, *words.split())
        assert done.returncode == 2
        assert done.stderr.startswith("sluice: ")
        assert reason in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_damaged_promotion_is_listed_as_a_problem(tmp_path: Path) -> None:
    place = Deployment(tmp_path, lanes=1).init()
    columns(place, "add", "logs", "attributes.k", "text")
    (path,) = tmp_path.glob("promotions/v1/logs/*.json")
    path.write_bytes(b"{")
    done = columns(place, "list")
    assert done.returncode == 1
    assert "promotions/v1/logs/attr_k.json" in done.stdout
