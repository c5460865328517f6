"""`make demo`: run every step with the `sluice` command, as an operator would.

It creates `.demo/`, a store for trying `sluice query`, `batches`, `gaps` and `explain`.
"""

import argparse
import json
import os
import shutil
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from deploy.demo.check import compare, count_rows, read_logs
from deploy.demo.inputs import Input, copy_inputs, feed
from deploy.demo.processes import (
    DemoFailed,
    Processes,
    environment,
    free_port,
    is_ready,
    wait_until,
)
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.units import Digest

ROOT: Final = Path(".demo")
EACH_LINE: Final = ("--format", "text", "--multiline-start", "^")
"""The check compares lines, so each is a record."""
AGENT: Final = "demo-host"
TOOL: Final = "demo-tool"
VISITOR: Final = "v-17"
CANARY: Final = "4929-1111-2222-3333"
"""What the record of the visitor contains: no object may contain it after the erasure."""
PAST: Final = "2020-01-01T00:00:00Z"
FUTURE: Final = "2100-01-01T00:00:00Z"


@dataclass(slots=True, kw_only=True)
class Demo:
    """State shared by the steps."""

    folder: Path
    store: str
    processes: Processes
    inputs: list[Input]
    ports: dict[str, int]
    report: list[str] = field(default_factory=list)
    old: str = ""
    """The sha256 of a batch that was accepted 40 days ago."""
    visits: str = ""
    """The sha256 of a batch with a record that is erased."""

    @property
    def gateways(self) -> str:
        """Return the gateways' URLs as the agent's option has them."""
        return ",".join(f"http://127.0.0.1:{port}" for port in self.ports.values())

    def add_note(self, line: str) -> None:
        """Add a line to the final report."""
        self.report.append(line)

    def key(self, name: str) -> str:
        """Return the path of a sender's key."""
        return str(self.folder / f"{name}.key")

    def table(self, name: str) -> Path:
        """Return the path of a table of the lake."""
        return self.folder / "store" / "lake" / "v1" / name

    def rows(self) -> dict[str, int]:
        """Count the rows of each table."""
        return {name: count_rows(self.table(name)) for name in ("logs", "metrics", "entries")}

    def batches(self) -> list[dict[str, Any]]:
        """Read all accepted batches directly from the manifests."""
        accepted = (self.folder / "store" / "accepted").rglob("*.json")
        return [json.loads(path.read_bytes()) for path in accepted]

    def shipped(self) -> dict[str, int]:
        """Count the accepted records of each kind."""
        records: dict[str, int] = {}
        for batch in self.batches():
            records[batch["kind"]] = records.get(batch["kind"], 0) + batch["record_count"]
        return records

    def agent_run(self, *more: str) -> tuple[str, ...]:
        """Return the agent's command line."""
        return (
            *("agent", "run", "--gateway", self.gateways, "--agent-id", AGENT),
            *("--key", self.key(AGENT), "--spool", str(self.folder / "spool")),
            *("--paths", str(self.folder / "logs" / "*"), *EACH_LINE, *more),
        )

    def entries_frame(self, value: bytes, *, boot: str = "demo") -> str:
        """Encode a small frame of entries under one fixed identity; return its path."""
        pair = {"key": b64encode(b"greeting").decode(), "value": b64encode(value).decode()}
        frame = self.processes.run(
            *("frame", "encode", "--agent", TOOL, "--boot", boot, "--seq-start", "0"),
            *("--kind", "entries"),
            stdin=json.dumps(pair).encode() + b"\n",
        )
        path = self.folder / f"{value.decode()}.lmbatch"
        path.write_bytes(frame)
        return str(path)

    def visits_frame(self) -> str:
        """Encode a frame of two log records, one of them of a visitor; return its path."""
        lines = [
            {"ts": 1, "body": f"card {CANARY}", "attributes": {"visitor": VISITOR}},
            {"ts": 2, "body": "another visit", "attributes": {"visitor": "v-18"}},
        ]
        frame = self.processes.run(
            *("frame", "encode", "--agent", TOOL, "--boot", "visits", "--seq-start", "0"),
            *("--kind", "logs", "--plain"),
            stdin="\n".join(map(json.dumps, lines)).encode(),
        )
        path = self.folder / "visits.lmbatch"
        path.write_bytes(frame)
        return str(path)

    def files_with(self, text: str) -> list[str]:
        """Return the files of the store that contain a text."""
        store = self.folder / "store"
        return [
            str(path.relative_to(store))
            for path in sorted(store.rglob("*"))
            if path.is_file() and text.encode() in path.read_bytes()
        ]

    def upload(self, frame: str, *more: str, accepted: bool = True) -> dict[str, Any]:
        """Send one frame and return the gateway's response."""
        result = self.processes.run_json("upload", frame, *more, expect=0 if accepted else 1)
        response: dict[str, Any] = json.loads(result["answer"])
        return response

    def blob(self, digest: str) -> Path:
        """Return the path of a blob."""
        return self.folder / "store" / blob_key(Digest(digest))

    def quarantined(self) -> set[str]:
        """Return the sha256 of every quarantined upload."""
        kept = (self.folder / "store" / "quarantine").rglob("*.json")
        return {json.loads(path.read_bytes())["submitted_frame_sha256"] for path in kept}

    def sluice(self, *arguments: str, expect: int = 0) -> Any:  # noqa: ANN401 - any JSON
        """Run a command on the demonstration's store and return its JSON."""
        return self.processes.run_json(*arguments, "--store", self.store, expect=expect)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print a step and its duration."""
    print(f"  {what} …", end="", flush=True)  # noqa: T201 - output of the demonstration
    started_s = time.monotonic()  # noqa: TID251 - only displayed
    yield
    print(f" {time.monotonic() - started_s:.1f} s")  # noqa: T201, TID251


def prepare(named: list[Path]) -> Demo:
    """Create a fresh folder with the inputs, and an authority in it."""
    shutil.rmtree(ROOT, ignore_errors=True)
    folder = ROOT.resolve()
    inputs = copy_inputs(named, folder)
    (folder / "sluice.toml").write_text("")
    processes = Processes(folder=folder, env=environment(folder))
    demo = Demo(
        folder=folder,
        store=f"file://{folder}/store",
        processes=processes,
        inputs=inputs,
        ports={"gateway-a": free_port(), "gateway-b": free_port()},
    )
    print(f"sluice demo: {len(inputs)} log files into {demo.store}")  # noqa: T201
    with step("create the authority settings and test the guarantees of the store"):
        demo.sluice("init", "--lanes", "2")
        demo.sluice("doctor")

    with step("create a key for each sender"):
        entries = [
            processes.run("agent", "init", "--agent-id", name, "--key", demo.key(name))
            for name in (AGENT, TOOL)
        ]
        (folder / "principals.toml").write_bytes(b"\n".join(entries))
    return demo


def start(demo: Demo) -> None:
    """Start two gateways and the agent."""
    with step("start two gateways and an agent"):
        for name, port in demo.ports.items():
            demo.processes.start(
                *(name, "gateway", "--store", demo.store, "--listen", f"127.0.0.1:{port}"),
                *("--principals", str(demo.folder / "principals.toml"), "--collector-id", name),
            )
        for port in demo.ports.values():
            ready = f"http://127.0.0.1:{port}/readyz"
            wait_until("gateway ready", partial(is_ready, ready), demo.processes, 30)
        demo.processes.start("agent", *demo.agent_run("--host-metrics-s", "0.5"))


def ship(demo: Demo) -> None:
    """Feed the files in parts, kill a gateway between them, and drain the agent."""
    with step("ship the first half of each file, until batches are accepted"):
        feed(demo.inputs, part=0, parts=2)
        wait_until("accepted batches", lambda: len(demo.batches()) > 1, demo.processes, 30)
    with step("kill -9 one gateway, then ship the second half"):
        demo.processes.kill("gateway-a")
        feed(demo.inputs, part=1, parts=2)
        before = len(demo.batches())
        wait_until("failover", lambda: len(demo.batches()) > before, demo.processes, 30)
        wait_until("host metrics", lambda: "metrics" in demo.shipped(), demo.processes, 30)
    with step("kill -9 the agent, start it again, and wait until it has shipped everything"):
        demo.processes.kill("agent")
        demo.processes.run(*demo.agent_run("--host-metrics-s", "0", "--once"))


def send_duplicates(demo: Demo) -> None:
    """Send one batch twice, then other bytes under its identity."""
    gateway = f"http://127.0.0.1:{demo.ports['gateway-b']}"
    send = ("--gateway", gateway, "--key", demo.key(TOOL))
    with step("send one batch of entries twice, then other bytes under its identity"):
        frame, rival = demo.entries_frame(b"first"), demo.entries_frame(b"other")
        first = demo.upload(frame, *send)
        second = demo.upload(frame, *send)
        conflict = demo.upload(rival, *send, accepted=False)
    with step("send a batch, and date it back by 40 days"):
        past = demo.entries_frame(b"past", boot="past")
        demo.upload(past, *send)
        demo.old = digest_of(Path(past).read_bytes())
        date_back(demo, demo.old, days=40)
    with step("send a batch with a record of a visitor, and date it back by 10 days"):
        visits = demo.visits_frame()
        demo.upload(visits, *send)
        demo.visits = digest_of(Path(visits).read_bytes())
        date_back(demo, demo.visits, days=10)
        Path(visits).unlink()
    expect("response to a new batch", first.get("duplicate"), wanted=False)
    expect("response to the same bytes", second.get("duplicate"), wanted=True)
    expect("response to other bytes", conflict.get("code"), "identity_conflict")
    demo.add_note("1 duplicate accepted with 200, 1 conflict refused with 409 and quarantined")


def ingest(demo: Demo) -> None:
    """Reconcile and ingest twice, and compare the lake with the input."""
    with step("reconciler: verify, index, enqueue"):
        demo.sluice("reconciler", "--once")
    with step("Spark: ingest the queue into Delta tables"):
        demo.sluice("spark", "ingest", "--once")
    with step("run both again: nothing may change"):
        rows = demo.rows()
        demo.sluice("reconciler", "--once")
        demo.sluice("spark", "ingest", "--once")
        expect("rows after running both again", demo.rows(), rows)
    with step("compare the lake with the files, byte for byte"):
        lines = compare(demo.inputs, read_logs(demo.table("logs"), AGENT))
        shipped = demo.shipped()
        for kind, records in shipped.items():
            expect(f"rows of {kind}", rows[kind], records)
    demo.add_note(
        f"{lines} lines of {len(demo.inputs)} files are in the lake, each once, unchanged"
    )
    demo.add_note(
        f"{shipped.get('metrics', 0)} metric samples, {shipped.get('entries', 0)} entries"
    )


def search(demo: Demo) -> None:
    """Find a shipped line with a query."""
    longest = max((line for one in demo.inputs for line in one.lines()), key=len)
    text = longest.decode(errors="ignore").strip()[:60]
    wanted = sum(
        text in line.decode(errors="replace") for one in demo.inputs for line in one.lines()
    )
    with step("query one of the lines"):
        found = demo.processes.run(
            *("query", "--store", demo.store, "--from", PAST, "--to", FUTURE),
            *("-q", text, f'{{agent="{AGENT}"}}', "--limit", str(wanted + 10), "--json"),
        )
    hits = [line for line in found.splitlines() if b'"body"' in line]
    expect("query results", len(hits), wanted)
    until = json.loads(found.splitlines()[-1])["summary"]["accepted_until"]
    if until is None:
        raise DemoFailed("the answer does not state how complete it is")
    demo.add_note(
        f"query found {wanted} line(s) with {text[:30]!r}; the answer is complete for everything"
        f" that was accepted until {until} (accepted_until)"
    )


def date_back(demo: Demo, digest: str, *, days: int) -> None:
    """Let the store contain what a gateway would have written some days ago.

    The local store uses the modification time of a file as the date of the object.
    """
    accepted = (demo.folder / "store" / "accepted").rglob("*.json")
    (path,) = (one for one in accepted if json.loads(one.read_bytes())["frame_sha256"] == digest)
    at_s = time.time() - days * 24 * 3600  # noqa: TID251 - sets the age of the files
    manifest = msgspec.json.decode(path.read_bytes(), type=AcceptedManifest)
    old = msgspec.structs.replace(manifest, accepted_at_unix_ns=int(at_s * 1e9))
    path.unlink()
    path.write_bytes(encode_record(old))
    for one in (path, demo.blob(digest)):
        os.utime(one, (at_s, at_s))


def expire(demo: Demo) -> None:
    """Let the old batch expire: its table is proved to contain what its blob contains."""
    with step("decide to keep raw batches for 30 days, and audit"):
        demo.sluice("retention", "set", "--raw", "30d", "--note", "demonstration")
        demo.sluice("audit", "run")
    with step("Spark: prove the old batch, and record its expiry in a signed tombstone"):
        done = demo.sluice("retention", "run")
    expect("expired batches", (done["candidates"], done["expired"], done["kept"]), (1, 1, {}))
    expect("blob before its deletion", demo.blob(demo.old).exists(), wanted=True)


def clean_up(demo: Demo) -> None:
    """Audit, plan and run garbage collection with one orphan and one expired batch."""
    with step("plant an orphan blob that is older than the retry horizon"):
        orphan = plant_orphan(demo, Path(demo.entries_frame(b"orphan")).read_bytes())
    with step("audit, plan, run"):
        demo.sluice("audit", "run")
        demo.sluice("gc", "plan")
        demo.sluice("gc", "run", "--grace-s", "0")
    expect("orphan left", orphan.exists(), wanted=False)
    expect("expired blob left", demo.blob(demo.old).exists(), wanted=False)
    explained = demo.sluice("explain", demo.old)
    expect("explanation of the expired batch", [one["blob"] for one in explained], ["expired"])
    expect(
        "missing blobs", demo.sluice("audit", "run")["certificate"]["counts"]["missing_blobs"], 0
    )
    digest = orphan.stem
    proof = demo.sluice("gc", "show", digest)
    with step("check that every accepted and quarantined blob still exists, unchanged"):
        named = {batch["frame_sha256"] for batch in demo.batches()} | demo.quarantined()
        for kept in named - {demo.old}:
            expect("sha256 of a kept blob", hash_file(demo.blob(kept)), kept)
    expect("proofs of the deletion", [one["verdict"] for one in proof["proofs"]], ["may_go"])
    demo.add_note(
        f"1 orphan deleted with a proof, {len(named) - 1} named blobs kept: sluice gc show {digest}"
    )
    demo.add_note(
        "1 batch of 40 days ago expired: its records are in the table, its blob is deleted, its"
        f" manifest stays: sluice explain {demo.old}"
    )


def erase(demo: Demo) -> None:
    """Erase the record of the visitor from every copy, and check it."""
    expect("copies of the record", bool(demo.files_with(CANARY)), wanted=True)
    where = ("--where", f"attributes['visitor'] = '{VISITOR}'")
    with step("erase the record of the visitor, wherever it is"):
        report = demo.sluice(
            *("erase", "run", *where, "--reason", "the visitor requested it"),
            *("--grace-s", "0", "--readers-hours", "0"),
        )
    left = {one["name"]: one["detail"] for one in report["copies"] if one["state"] == "open"}
    expect("copies that are left", left, {})
    expect("verified by a search", report["verified"], wanted=True)
    expect("batches and records", (report["batches"], report["records"]), (1, 1))
    with step("search every object, and verify the signed report"):
        expect("files with the record", demo.files_with(CANARY), [])
        expect("blob of the batch", demo.blob(demo.visits).exists(), wanted=False)
        signed = demo.sluice("erase", "report", report["erasure_id"])
        expect("signed report", signed["report"], report)
        found = demo.processes.run(
            *("query", "--store", demo.store, "--from", "1970-01-01T00:00:00Z", "--to", FUTURE),
            *("-q", "another visit", "--json"),
        )
        expect("other record of the batch", found.count(b"another visit") > 0, wanted=True)
    demo.add_note(
        "1 record of a visitor erased from the table, its log and its blob; the other record of"
        f" the batch stays: sluice erase report {report['erasure_id']}"
    )


def plant_orphan(demo: Demo, frame: bytes) -> Path:
    """Write a blob that no manifest names into the store, dated 30 days back.

    The local store uses the modification time of a file as the date of the object, so a file
    restored from a backup has its original age.
    """
    path = demo.blob(digest_of(frame))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(frame)
    month_ago_s = time.time() - 30 * 24 * 3600  # noqa: TID251 - sets the age of the file
    os.utime(path, (month_ago_s, month_ago_s))
    return path


def hash_file(path: Path) -> str:
    """Return the sha256 of a file."""
    return digest_of(path.read_bytes())


def print_report(demo: Demo) -> None:
    """Print the final report and commands to try."""
    print("\nall checks passed:")  # noqa: T201
    for line in demo.report:
        print(f"  - {line}")  # noqa: T201
    store = f"--store {demo.store}"
    print("\ntry these commands on the store:")  # noqa: T201
    for command in (
        f"sluice batches {store}",
        f"sluice gaps {store}",
        f"sluice query {store} --from {PAST} --to {FUTURE} -q error --limit 5",
        f"sluice explain {store} {demo.old}",
        f"sluice conflicts list {store}",
    ):
        print(f"  .venv/bin/{command}")  # noqa: T201
    print(  # noqa: T201
        "\nopen the console on the store; it reports that both gateways have stopped,"
        " because this demonstration killed one and stopped the other:"
    )
    print(f"  .venv/bin/sluice console {store}")  # noqa: T201


def expect(what: str, found: object, wanted: object) -> None:
    """Raise an error if a result differs from the expected value."""
    if found != wanted:
        raise DemoFailed(f"{what}: expected {wanted!r}, found {found!r}")


def main() -> int:
    """Run the demonstration; return 0 only if every check passed."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--input", nargs="*", default=[], type=Path, help="files to ship")
    named = parser.parse_args().input
    demo = None
    try:
        demo = prepare([path.resolve() for path in named])
        for act in (start, ship, send_duplicates, ingest, search, expire, clean_up, erase):
            act(demo)
        demo.processes.stop("gateway-b")
    except (DemoFailed, BadUsage) as error:
        print(f"\ndemo failed: {error}")  # noqa: T201
        return 1
    finally:
        if demo is not None:
            demo.processes.stop_all()
    print_report(demo)
    return 0


if __name__ == "__main__":
    sys.exit(main())
