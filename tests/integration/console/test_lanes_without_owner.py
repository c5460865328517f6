"""A lane that stays without an owner: the console and `sluice status` show the same item."""

import asyncio
import json
import os
import time
import urllib.request
from pathlib import Path
from typing import Any

from support.console_world import OPERATOR, ConsoleWorld, age_lanes, served_console, stop_everything
from ulid import ULID

from sluice_cli.deployment.facts import read_facts
from sluice_protocol.manifests import encode_record
from sluice_reconciler.lanes.membership import FORGET_S, MemberRecord, member_key

TITLE = "has no owner"
HOUR_S = 3600


def get(world: ConsoleWorld, path: str) -> bytes:
    request = urllib.request.Request(world.url + path)
    request.add_header("Authorization", f"Bearer {OPERATOR}")
    with urllib.request.urlopen(request, timeout=60) as found:
        return bytes(found.read())


def in_console(world: ConsoleWorld, *, after: int = 0) -> tuple[int, list[dict[str, Any]]]:
    """Return the time of a sample that began later, and its items about owners."""
    for _ in range(200):
        found = json.loads(get(world, "/v1/overview"))
        if found["at_unix_ns"] > after:
            items = [one for one in found["attention"] if "owner" in one["title"]]
            return found["at_unix_ns"], items
        time.sleep(0.1)
    raise AssertionError("no new sample")


def in_status(world: ConsoleWorld) -> list[dict[str, Any]]:
    facts = asyncio.run(read_facts(f"file://{world.store_folder}"))
    return [
        {name: getattr(one, name) for name in one.__struct_fields__}
        for one in facts.attention
        if "owner" in one.title
    ]


def write_member(world: ConsoleWorld, *lanes: int, age_s: float, beat_s: float = 0.0) -> None:
    """Write the record of a member that started and reported so long ago."""
    name = str(ULID.from_timestamp(time.time() - age_s))
    path = world.store_folder / member_key(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_record(MemberRecord(member=name, lanes=lanes)))
    os.utime(path, (time.time() - beat_s,) * 2)


def test_lanes_whose_reconciler_stopped_are_named_until_another_one_works(tmp_path: Path) -> None:
    with served_console(tmp_path, services=False, plant=stop_everything) as world:
        at_ns, found = in_console(world)
        (item,) = found
        assert TITLE in item["title"]
        assert (item["severity"], item["page"]) == ("error", "queue")
        assert item["command"] == "sluice queue status"
        assert "start `sluice reconciler`" in item["detail"]
        assert "SluiceLaneWithoutOwner" in item["detail"]
        assert in_status(world) == found
        gauge = 'sluice_console_lanes_without_owner{state="unowned"}'
        lines = get(world, "/metrics").decode().splitlines()
        assert next(float(one.split()[1]) for one in lines if one.startswith(gauge)) > 0
        write_member(world, *range(256), age_s=0)
        time.sleep(0.1)
        assert in_status(world) == []
        assert in_console(world, after=at_ns + 10**9)[1] == []


def test_a_lane_that_is_handed_over_is_not_named(tmp_path: Path) -> None:
    """A reconciler starts and has no lane yet, or one died a moment ago: no alarm."""
    with served_console(tmp_path, services=False, plant=stop_everything) as world:
        assert in_status(world) != []
        write_member(world, age_s=10)
        assert in_status(world) == [], "a reconciler has just started"
        age_members(world, HOUR_S)
        write_member(world, age_s=FORGET_S, beat_s=30)
        assert in_status(world) == [], "a reconciler has just died"
        age_members(world, 61)
        assert in_status(world) != []


def test_a_reconciler_without_lanes_does_not_hide_them(tmp_path: Path) -> None:
    """It runs and works on no lane, for example because its passes fail."""
    with served_console(tmp_path, services=False, plant=stop_everything) as world:
        write_member(world, age_s=HOUR_S)
        assert len(in_status(world)) == 1


def test_nothing_is_named_while_discovery_is_current(tmp_path: Path) -> None:
    """An idle standby claims a lane with its next batch: nothing waits, so nothing is wrong."""

    def plant(world: ConsoleWorld) -> None:
        age_lanes(world.store_folder)

    with served_console(tmp_path, services=False, plant=plant) as world:
        assert in_status(world) == []
        assert in_console(world)[1] == []


def age_members(world: ConsoleWorld, age_s: float) -> None:
    for path in (world.store_folder / "reconciler/v1/members").iterdir():
        os.utime(path, (time.time() - age_s,) * 2)
