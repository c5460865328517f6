"""Plants each trouble of the runbook in a deployment and in the metrics of a gateway."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import start_http_server
from support.console_world import SETTINGS, ConsoleWorld, served_console

from sluice_gateway.metrics import GatewayMetrics
from sluice_gc.audit.certificate import AuditCounts, Certificate, sign_certificate
from sluice_protocol.journals import DISCOVERY
from sluice_protocol.keys import QUEUE, chain_key, digest_of
from sluice_protocol.maintenance import (
    RunOutcome,
    TaskRecord,
    TaskRun,
    task_record_key,
)
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.lanes.state import LANES

HOUR_NS = 3600 * NS_PER_S
AUDIT_ID = "01ARZ3NDEKTSV4RRFFQ69G5FAA"
_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@dataclass
class TroubledWorld:
    """A console over a deployment with most troubles of the runbook.

    Attributes:
        console: The deployment.
        metrics: The metrics of the gateway that the console reads.
    """

    console: ConsoleWorld
    metrics: GatewayMetrics


@contextmanager
def troubled_console(folder: Path) -> Iterator[TroubledWorld]:
    """Serve a console over a deployment whose services run and report trouble."""
    metrics = GatewayMetrics()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=metrics.registry)
    settings = replace(SETTINGS, gateways=f"http://127.0.0.1:{server.server_port}")
    try:
        with served_console(folder, settings, plant=plant_in_store) as world:
            yield TroubledWorld(world, metrics)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def plant_in_gateway(metrics: GatewayMetrics) -> None:
    """Change the metrics of a gateway, after the console has read them once."""
    metrics.accepts_of("identity_conflict").inc(50)
    for _ in range(50):
        metrics.store_requests_of("create", "error").inc()
        metrics.store_seconds_of("create").observe(12.0)
    metrics.journal_age.set(45)
    metrics.spool_capacity.set(1e9)
    metrics.spool_bytes.set(9e8)
    metrics.principals_stale.set(1)


def plant_in_store(world: ConsoleWorld) -> None:
    """Damage the store: a register, tasks of maintenance, an audit."""
    store, now_ns = world.store_folder, time.time_ns()
    registers = sorted((store / QUEUE).glob("*/manifest"))
    registers[0].unlink()
    run = TaskRun(
        started_at_unix_ns=now_ns - HOUR_NS,
        ended_at_unix_ns=now_ns - HOUR_NS + NS_PER_S,
        outcome=RunOutcome.FAILED.value,
        owner="host",
        reason="access denied to lake/",
    )
    done = msgspec.structs.replace(run, outcome=RunOutcome.DONE.value, reason="")
    for task in (
        TaskRecord(task="rollup", revision=1, nonce="n", runs=(run,), failures=3),
        TaskRecord(task="gc", revision=1, nonce="n", halted="the plan names an accepted blob"),
        TaskRecord(
            task="compact",
            revision=1,
            nonce="n",
            runs=(done,),
            due_at_unix_ns=now_ns - HOUR_NS,
            every_s=60.0,
        ),
    ):
        put(store / task_record_key(task.task), encode_record(task))
    put(store / chain_key(0), sign_certificate(audit(now_ns), _KEY))


def stop_everything(world: ConsoleWorld) -> None:
    """Leave what an hour without services leaves: ended gateways, old lanes, an old discovery."""
    shutil.rmtree(world.store_folder / "gateways")
    age_lanes(world.store_folder)
    discovery = world.store_folder / DISCOVERY
    record = json.loads(discovery.read_bytes())
    record["complete_through_unix_ns"] = time.time_ns() - HOUR_NS
    discovery.chmod(0o600)
    discovery.write_text(json.dumps(record))


def age_lanes(store: Path) -> None:
    """Make the states of lanes an hour old, as if their owners stopped then."""
    hour_ago_ns = time.time_ns() - HOUR_NS
    for path in (store / LANES).iterdir():
        os.utime(path, ns=(hour_ago_ns, hour_ago_ns))


def audit(now_ns: int) -> Certificate:
    return Certificate(
        authority_id="A",
        retry_horizon_s=300,
        audit_id=AUDIT_ID,
        chain_index=0,
        previous_audit_id="",
        previous_sha256="",
        started_at_unix_ns=now_ns - HOUR_NS,
        finished_at_unix_ns=now_ns - HOUR_NS + NS_PER_S,
        clock_skew_ns=0,
        deep=0.0,
        shards=1,
        coverage=(),
        merkle_root=digest_of(b""),
        counts=AuditCounts(accepted=9, missing_blobs=2),
        evidence=(),
    )


def put(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
