"""`make compare-faults`: the same lines and the same faults, for sluice and for alternatives.

All of them run at the same time, each with its own file, storage and faults. A line counts as
stored when storage contains it; it is lost if it is missing when nothing has arrived for
`QUIET_S` after the fault has ended, and doubled for each further copy.
"""

import argparse
import asyncio
import io
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.page_sections import markdown_table, split_section
from support.store_versitygw import CREDENTIALS, versitygw
from verify.link import FaultyLink
from verify.running import revision
from verify.shippers import SHIPPERS, Shipper, make_shipper, shipping

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/comparison.md"
FIRST_PAGE: Final = ROOT / "README.md"
RESULTS: Final = Path(__file__).with_name("compared_faults.json")
BEGIN: Final = "<!-- written by `make compare-faults WRITE=1` -->\n"
END: Final = "<!-- end of faults -->"
LINES_PER_S: Final = 200
WARM_S: Final = 8.0
AFTER_S: Final = 8.0
QUIET_S: Final = 90.0
WAIT_S: Final = 300.0


@dataclass(frozen=True)
class Faults:
    """The faults of one shipper; `outage_s` is how long the store is unreachable."""

    shipper: Shipper
    rng: random.Random
    outage_s: float

    async def none(self) -> None:
        await asyncio.sleep(5.0)

    async def store_away(self) -> None:
        self.shipper.store_link.disconnect()
        await asyncio.sleep(self.outage_s)
        await self.shipper.store_link.connect()

    async def response_lost(self) -> None:
        """For 20 s, and up to 120 s for a shipper that sends too few requests to lose ten."""
        link = self.shipper.store_link
        link.drop_share = 0.3
        await asyncio.sleep(20.0)
        for _ in range(100):
            if link.fired >= 10:
                break
            await asyncio.sleep(1.0)
        link.drop_share = 0.0

    async def store_slow(self) -> None:
        self.shipper.store_link.delay_s_max = 12.0
        await asyncio.sleep(40.0)
        self.shipper.store_link.delay_s_max = 0.0

    async def reader_killed(self) -> None:
        for _ in range(4):
            await self._kill()
            await asyncio.sleep(self.rng.uniform(2.0, 6.0))

    async def reader_killed_in_outage(self) -> None:
        self.shipper.store_link.disconnect()
        await asyncio.sleep(8.0)
        await self._kill()
        await asyncio.sleep(4.0)
        await self.shipper.store_link.connect()

    async def disk_full_in_outage(self) -> None:
        self.shipper.store_link.disconnect()
        filler = self.shipper.disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))
        await asyncio.sleep(12.0)
        filler.unlink()
        await asyncio.sleep(3.0)
        await self.shipper.store_link.connect()

    async def other_instance(self) -> None:
        """Responses of the servers in the middle are lost, and they are killed in turn."""
        self.shipper.middle_link.drop_share = 0.3
        for _ in range(3):
            await self.shipper.replace_server()
            await asyncio.sleep(self.rng.uniform(3.0, 6.0))
        self.shipper.middle_link.drop_share = 0.0

    async def _kill(self) -> None:
        with suppress(KeyError):
            self.shipper.kill("reader")
        await asyncio.sleep(self.rng.uniform(0.2, 2.0))
        self.shipper.start("reader")


FAULTS: Final = {
    "none": "none (control)",
    "store_away": "the store is unreachable",
    "response_lost": "3 of 10 responses of the store are lost",
    "store_slow": "the store is slow: up to 12 s for each packet",
    "reader_killed": "`kill -9` of the reader, four times",
    "reader_killed_in_outage": "`kill -9` of the reader while the store is unreachable",
    "disk_full_in_outage": "the disk of the reader is full while the store is unreachable",
    "other_instance": "responses lost and servers killed in the middle: the retry reaches another",
}


async def measure(shipper: Shipper, fault: str, seed: int, outage_s: float) -> dict[str, Any]:
    """Write lines while a fault happens, and count what is stored in the end."""
    rng = random.Random(f"{seed} {fault} {shipper.name}")
    if fault == "other_instance" and not shipper.has_middle:
        return {}
    async with shipping(shipper):
        stop = asyncio.Event()
        writing = asyncio.create_task(write_lines(shipper.log, stop))
        supervising = asyncio.create_task(supervise(shipper))
        await asyncio.sleep(WARM_S)
        action: Callable[[], Awaitable[None]] = getattr(Faults(shipper, rng, outage_s), fault)
        await action()
        firings = shipper.store_link.fired + shipper.middle_link.fired + shipper.kills
        await asyncio.sleep(AFTER_S)
        stop.set()
        sent = await writing
        stored = await settled(shipper, sent)
        supervising.cancel()
    missing = sent - len(stored)
    return {
        "sent": sent,
        "stored": len(stored),
        "lost": missing,
        "doubled": stored.total() - len(stored),
        "firings": firings,
    }


async def supervise(shipper: Shipper) -> None:
    """Start a process again that has ended, as systemd does."""
    while True:
        await asyncio.sleep(1.0)
        for name, process in list(shipper.processes.items()):
            if process.poll() is not None:
                print(f"{shipper.name}: {name} ended with code {process.returncode}", flush=True)
                shipper.start(name)


async def write_lines(log: Path, stop: asyncio.Event) -> int:
    """Append lines, and rename the file once as log rotation does."""
    number = 0
    file = _opened(log)
    while not stop.is_set():
        for _ in range(LINES_PER_S // 10):
            file.write(b"line %08d %s\n" % (number, b"x" * 80))
            number += 1
        if number == LINES_PER_S * 5:
            file.close()
            file = _rotated(log)
        await asyncio.sleep(0.1)
    file.close()
    return number


def _opened(log: Path) -> io.FileIO:
    return log.open("ab", buffering=0)


def _rotated(log: Path) -> io.FileIO:
    log.rename(log.with_name("app.log.1"))
    return _opened(log)


async def settled(shipper: Shipper, sent: int) -> Any:
    """Return the stored lines when all are, or nothing has arrived for some time."""
    ends_s = time.monotonic() + WAIT_S
    quiet_from_s, stored = time.monotonic(), await asyncio.to_thread(shipper.lines)
    while time.monotonic() < min(quiet_from_s + QUIET_S, ends_s) and len(stored) < sent:
        await asyncio.sleep(5.0)
        found = await asyncio.to_thread(shipper.lines)
        if len(found) > len(stored):
            quiet_from_s = time.monotonic()
        stored = found
    await asyncio.sleep(10.0)  # further copies
    return await asyncio.to_thread(shipper.lines)


async def compare(names: list[str], faults: list[str], seed: int, outage_s: float) -> Any:
    """Run each fault for all shippers at the same time."""
    found: dict[str, dict[str, Any]] = {fault: {} for fault in faults}
    runs: dict[str, Any] = {}
    run = {
        "revision": revision(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "seed": seed,
        "outage_s": outage_s,
    }
    os.environ.update(CREDENTIALS)
    with tempfile.TemporaryDirectory() as base, versitygw(Path(base)) as server:
        port = int(server.endpoint.rpartition(":")[2])
        for fault in faults:
            shippers = [
                make_shipper(
                    name, Path(base) / f"{number}-{fault}", port,
                    lambda: FaultyLink(lambda: [port], random.Random(seed)),
                )
                for number, name in enumerate(names)
            ]  # fmt: skip
            for one in shippers:
                runs[one.name] = {"version": one.version, "settings": one.settings} | run
            async with asyncio.TaskGroup() as tasks:
                measured = [
                    tasks.create_task(measure(one, fault, seed, outage_s)) for one in shippers
                ]
            for one, task in zip(shippers, measured, strict=True):
                if result := task.result():
                    found[fault][one.name] = result
                    print(f"{fault:24} {one.name:24} {json.dumps(result)}", flush=True)
    return {
        "lines_per_s": LINES_PER_S,
        "store": "versitygw",
        "shippers": runs,
        "faults": found,
    }


def merged(stored: Any, new: Any) -> Any:
    """Return `new` with the shippers that only `stored` contains, in the order of `SHIPPERS`."""

    def both(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
        found = before | after
        return {name: found[name] for name in SHIPPERS if name in found}

    return new | {
        "shippers": both(stored["shippers"], new["shippers"]),
        "faults": {
            fault: both(stored["faults"].get(fault, {}), new["faults"][fault]) for fault in FAULTS
        },
    }


def table(results: Any) -> str:
    """Return lost and further copies of lines for each fault as Markdown."""
    names = list(results["shippers"])

    def cell(found: dict[str, Any] | None) -> str:
        if not found:
            return "-"
        text = f"{found['lost']} / {found['doubled']}"
        return text if text == "0 / 0" else f"**{text}**"

    rows = (
        (FAULTS[fault], *(cell(by_name.get(name)) for name in names))
        for fault, by_name in results["faults"].items()
    )
    return markdown_table(("fault: lines lost / copied again", *names), rows)


def section(results: Any) -> str:
    """Return the table with the facts of the run."""
    sent = [one["sent"] for by_name in results["faults"].values() for one in by_name.values()]
    settings = markdown_table(
        ("", "version", "settings", "run"),
        (
            (name, one["version"], one["settings"], _run(one))
            for name, one in results["shippers"].items()
        ),
    )
    facts = (
        f"{min(sent)} to {max(sent)} lines for each cell, {results['lines_per_s']} a second;"
        f" `{results['store']}`.\n"
    )
    return f"{facts}\n{table(results)}\n{settings}"


def _run(one: Any) -> str:
    return (
        f"{one['date']}, revision `{one['revision']}`, seed {one['seed']}, {one['machine']};"
        f" the store is unreachable for {one['outage_s']:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="compare-faults", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*SHIPPERS], default=[*SHIPPERS])
    parser.add_argument("--faults", nargs="+", choices=[*FAULTS], default=[*FAULTS])
    parser.add_argument("--outage-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--write", action="store_true", help="write the results of these shippers")
    options = parser.parse_args()
    if options.write and {*options.faults} != {*FAULTS}:
        parser.error("--write requires all faults: omit --faults")
    print(f"compare-faults seed={options.seed}", flush=True)
    results = asyncio.run(compare(options.only, options.faults, options.seed, options.outage_s))
    print(section(results))
    if options.write:
        results = merged(json.loads(RESULTS.read_text()), results)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
        for page, text in ((PAGE, section(results)), (FIRST_PAGE, table(results))):
            before, _, after = split_section(page.read_text(), BEGIN, END)
            page.write_text(f"{before}\n{text}\n{after}")


if __name__ == "__main__":
    main()
