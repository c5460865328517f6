"""A block of lines has the times that the reader of one text finds in each line."""

import os
import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from sluice_agent.inputs.timestamps import parse_timestamps
from sluice_agent.settings import Zone
from sluice_protocol.records import text_column
from sluice_protocol.times import scan_time
from sluice_protocol.units import UnixNs

ARRIVED = UnixNs(1_800_000_000 * 10**9)
ZONES: tuple[Zone, ...] = (None, ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe"))


def block(form: str, *, count: int = 200, step_ms: int = 37) -> list[bytes]:
    """Return lines with rising times; `{f}` is the fraction of a second in six digits."""
    start = datetime(2026, 3, 29, 0, 58, tzinfo=UTC)
    lines = []
    for number in range(count):
        at = start + timedelta(milliseconds=step_ms * number)
        text = at.strftime(form).replace("{f}", f"{at.microsecond:06d}")
        lines.append(f"{text} some text {number}".encode())
    return lines


def time_of(line: bytes, zone: Zone) -> int:
    """Return the time that the reader of one text finds, or that of arrival."""
    text = line.decode("latin-1").removeprefix("[")
    found = scan_time(text, zone=zone, received_ns=ARRIVED)
    return ARRIVED if found is None or found.ts_ns is None else found.ts_ns


@pytest.mark.parametrize(
    "form",
    [
        "%Y-%m-%dT%H:%M:%S.{f}+00:00", "%Y-%m-%dT%H:%M:%S.{f}-0330", "%Y-%m-%d %H:%M:%S,{f}",
        "[%Y-%m-%dT%H:%M:%SZ]", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S.{f}123z",
        "%Y-%m-%dT%H:%M:%S.{f}12Z",
    ],
)  # fmt: skip
@pytest.mark.parametrize("zone", ZONES)
def test_the_usual_forms_are_read(form: str, zone: Zone) -> None:
    lines = block(form)
    found = parse_timestamps(text_column("body", lines), arrived_ns=ARRIVED, zone=zone)
    assert found.dtype == np.int64
    assert found.tolist() == [time_of(line, zone) for line in lines]
    assert ARRIVED not in found


@pytest.mark.parametrize("name", [" UTC", " GMT", " +0100", " -03:30"])
@pytest.mark.parametrize("place", [0, 100, -1])
def test_a_zone_after_a_space_is_read_in_any_line(name: str, place: int) -> None:
    lines = block("%Y-%m-%d %H:%M:%S.{f}")
    lines[place] = f"2026-03-29 00:58:07.123456{name} some text".encode()
    column = text_column("body", lines)
    found = parse_timestamps(column, arrived_ns=ARRIVED, zone=ZONES[1])
    assert found.tolist() == [time_of(line, ZONES[1]) for line in lines]
    named = parse_timestamps(text_column("body", [lines[place]]), arrived_ns=ARRIVED, zone=ZONES[2])
    assert found[place] == named[0], "the zone of the line counts, not that of the agent"


@pytest.mark.parametrize(
    "line",
    [
        "", "no time at all, and long enough to be read as a row", "[2026-03-29T00:58:07.123456Z x",
        "2026-03-29T00:58:07,123456+00:00 x", "2026-03-29T00:58:07.12345+00:00 xxx",
        "2026-03-29T00:58:07.1234567+00:00 x", "2026-03-29T00:58:07.123456+01:00 x",
        "2026-03-29T00:58:07.123456Z xxxxxx", "2026-03-29T00:58:60.123456+00:00 x",
        "2026-03-29T00:58:0:.123456+00:00 x", "2026-03-29T00:58:07.12345:+00:00 x",
        "2026-03-29T00:58:07.12345/+00:00 x", "2026-02-30T00:58:07.123456+00:00 x",
        "2026-03-29T24:58:07.123456+00:00 x", "2262-03-29T00:58:07.123456+00:00 x",
        "2026-03-29_00:58:07.123456+00:00 x", "2026-03-29T00:58-07.123456+00:00 x",
        "2026-03-29T00:58:07.123456+00:0", "Mar 29 00:58:07 host app: a line of syslog",
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 100, -1])
def test_a_line_of_another_form_has_its_own_time(line: str, place: int) -> None:
    lines = block("%Y-%m-%dT%H:%M:%S.{f}+00:00")
    lines[place] = line.encode()
    column = text_column("body", lines)
    alone = parse_timestamps(text_column("body", [line.encode()]), arrived_ns=ARRIVED, zone=None)
    assert parse_timestamps(column, arrived_ns=ARRIVED, zone=None)[place] == alone[0]


def test_both_readers_agree_on_damaged_blocks() -> None:
    """A changed byte anywhere is no timestamp, or the one that the reader of texts has."""
    seed = int(os.environ.get("SLUICE_FUZZ_SEED", "2026"))
    rng, times = random.Random(seed), 0
    forms = [
        *("%Y-%m-%dT%H:%M:%S.{f}+00:00", "%Y-%m-%d %H:%M:%S", "[%Y-%m-%d %H:%M:%S,{f}Z"),
        *("%Y-%m-%d %H:%M:%S UTC", "%Y-%m-%d %H:%M:%S PM", "%Y-%m-%dT%H:%M:%S.{f}+01"),
        *("%b %d %H:%M:%S", "%b %d %H:%M:%S CET", "%Y-%m-%d %H:%M:%S,{f} WARN"),
    ]
    for number in range(200):
        lines = block(
            rng.choice(forms), count=rng.choice([1, 3, 40]), step_ms=rng.choice([1, 5000])
        )
        changed = bytearray(lines[0])
        for _ in range(rng.randrange(3)):
            changed[rng.randrange(min(36, len(changed)))] = rng.choice(
                b"0123456789:-+.,TZ [x\0\xffUGAPME"
            )
        lines = [bytes(changed)] * rng.choice([1, 1, 2]) + lines[rng.choice([0, 1]) :]
        zone = rng.choice(ZONES)
        found = parse_timestamps(text_column("body", lines), arrived_ns=ARRIVED, zone=zone).tolist()
        assert found == [time_of(line, zone) for line in lines], f"seed={seed} number={number}"
        times += sum(one != ARRIVED for one in found)
    assert times > 300


def test_lines_of_several_forms_are_read_in_one_block() -> None:
    """Lines of any forms, in any order, have the times that the reader of texts has."""
    seed = int(os.environ.get("SLUICE_FUZZ_SEED", "2026"))
    rng = random.Random(seed)
    forms = [
        *("%Y-%m-%dT%H:%M:%S.{f}+00:00", "%Y-%m-%d %H:%M:%S", "[%Y-%m-%d %H:%M:%S,{f}Z]"),
        *("%b %d %H:%M:%S", "*%b %d %H:%M:%S", "%b %d %H:%M:%S %Y", "%H:%M:%S", "no time"),
        *(f"%Y-%m-%dT%H:%M:%S.{'1' * width}Z" for width in range(1, 11)),
    ]
    for number in range(100):
        step_ms = rng.choice([1, 5000, 7 * 86_400_000])
        blocks = [block(form, count=40, step_ms=step_ms) for form in rng.sample(forms, 5)]
        lines = [rng.choice(blocks)[place] for place in range(rng.choice([5, 40]))]
        lines = [line[: rng.choice([16, 20, 30, 60])] for line in lines]
        zone = rng.choice(ZONES)
        found = parse_timestamps(text_column("body", lines), arrived_ns=ARRIVED, zone=zone).tolist()
        assert found == [time_of(line, zone) for line in lines], f"seed={seed} number={number}"


@pytest.mark.parametrize("second", [0, 29, 30, 31, 59])
def test_the_year_of_a_line_depends_on_the_second_of_its_arrival(second: int) -> None:
    """Lines of the minute that is a day after the arrival are of this year or of the last one."""
    arrived = datetime(2026, 3, 28, 0, 58, second, 500_000, tzinfo=UTC)
    arrived_ns = UnixNs((int(arrived.timestamp()) * 10 + 5) * 10**8)
    lines = block("%b %d %H:%M:%S", count=120, step_ms=1000)
    column = text_column("body", lines)
    found = parse_timestamps(column, arrived_ns=arrived_ns, zone=ZoneInfo("UTC")).tolist()
    texts = [line.decode() for line in lines]
    wanted = [scan_time(text, zone=ZoneInfo("UTC"), received_ns=arrived_ns) for text in texts]
    assert found == [one and one.ts_ns for one in wanted]
    assert [at > arrived_ns for at in found] == [number <= second for number in range(120)]
