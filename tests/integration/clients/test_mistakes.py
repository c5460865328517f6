"""What a client logs after a usual mistake: the table `No data arrives` of its page."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.client_programs import FOLLOWERS, LIBRARY_CLIENTS, METRIC_CLIENTS, SEND, ClientCase
from support.door_client import TestSender
from support.door_fleet import Balancer, Fleet, balancing, fleet
from support.store_versitygw import free_port

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]
CASES = {case.name: case for case in (*FOLLOWERS, *METRIC_CLIENTS, *LIBRARY_CLIENTS)}
LOGGED_S = 90
HEADING = "## No data arrives"


@dataclass(frozen=True)
class Mistake:
    """A mistake of an operator.

    Attributes:
        change: Returns the fleet as the client is configured.
        other_door: Whether the gateway has another door open than the client needs.
    """

    change: Callable[[Fleet], Fleet] = lambda served: served
    other_door: bool = False


def with_wrong_token(served: Fleet) -> Fleet:
    return replace(served, sender=TestSender("stranger", (), doors=("json",)))


def with_wrong_port(served: Fleet) -> Fleet:
    return replace(served, balancer=Balancer([], port=free_port()))


MISTAKES = {
    "the token is wrong": Mistake(with_wrong_token),
    "nothing listens at the address": Mistake(with_wrong_port),
    "`https://` for a gateway without TLS": Mistake(lambda served: replace(served, scheme="https")),
    "the door is not open": Mistake(other_door=True),
}


NOT_POSSIBLE = {
    "fluent-bit": {"`https://` for a gateway without TLS"},
    "rsyslog": {"`https://` for a gateway without TLS"},
    # It sends no token, and its protocol has a separate port.
    "fluency": set(MISTAKES) - {"nothing listens at the address"},
}
"""Mistakes that a client cannot make, or that are equal to another one."""


@dataclass(frozen=True)
class Row:
    """A row of the table of a page.

    Attributes:
        client: The page.
        mistake: The first column.
        logged: What the second column quotes; `…` stands for any text.
    """

    client: str
    mistake: str
    logged: tuple[str, ...]

    def is_in(self, log: str) -> bool:
        """Return whether a log contains every quoted text."""
        patterns = (".*".join(map(re.escape, one.split("…"))) for one in self.logged)
        return all(re.search(pattern, log) for pattern in patterns)


def rows_of(client: str) -> Iterator[Row]:
    """Yield the rows of the table of a page."""
    _, _, section = (SEND / f"{client}.md").read_text(encoding="utf-8").partition(HEADING)
    for line in section.partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("|") and cells[0] in MISTAKES:
            yield Row(client, cells[0], tuple(re.findall(r"`([^`]+)`", cells[1])))


ROWS = [row for name in CASES for row in rows_of(name)]


@contextmanager
def started(case: ClientCase, mistake: Mistake, folder: Path) -> Iterator[Path]:
    """Run a client that was configured with a mistake, and yield the folder of its logs."""
    open_door = case.door
    if mistake.other_door:
        open_door = "json" if case.door != "json" else "loki"
    with (
        fleet(folder, open_door, count=1) as served,
        balancing(served.ports(case.door)) as balancer,
    ):
        place = folder / "client"
        place.mkdir()
        client_side = replace(served, balancer=balancer)
        with case.start(mistake.change(client_side), place) as client:
            client.feed(range(3))
            yield place


def logs(folder: Path) -> str:
    return "\n".join(
        path.read_text(encoding="utf-8", errors="replace")
        for path in folder.rglob("*")
        if path.is_file() and (path.suffix == ".log" or "/logs/" in str(path))
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.client}: {row.mistake}")
def test_the_client_logs_what_its_page_quotes(tmp_path: Path, row: Row) -> None:
    with started(CASES[row.client], MISTAKES[row.mistake], tmp_path) as place:
        until = time.monotonic() + LOGGED_S
        while not row.is_in(logs(place)) and time.monotonic() < until:
            time.sleep(0.5)
        found = logs(place)
    assert row.is_in(found), found


@pytest.mark.parametrize("client", CASES)
def test_each_page_has_every_mistake(client: str) -> None:
    missing = set(MISTAKES) - {row.mistake for row in rows_of(client)}
    assert missing <= NOT_POSSIBLE.get(client, set())
