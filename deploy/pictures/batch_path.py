"""The path of a batch: requests to services, and the rights of their roles under each prefix."""

from typing import Final

from deploy.pictures.drawing import Drawing, DrawnEdge, DrawnState, Step, arrow
from deploy.reference import routes_of
from sluice_policies.access_matrix import MATRIX, Verb
from sluice_policies.settings import RoleName
from sluice_protocol import keys

_ROLES: Final = {
    "gateway": RoleName.GATEWAY,
    "reconciler": RoleName.RECONCILER,
    "spark": RoleName.SPARK,
    "query": RoleName.AUDITOR,
    "audit": RoleName.CERTIFIER,
    "gc": RoleName.GC,
}
"""The role of each service in the access matrix; queries read with the role of the auditor."""
_REQUESTS: Final = {"agent": "gateway", "client": "query"}
"""Who sends requests to which service."""


def explore() -> frozenset[Step]:
    """Return every route between programs, and every right of a service under a prefix."""
    steps: set[Step] = set()
    for sender, service in _REQUESTS.items():
        steps |= {(sender, f"{one.method} {one.path}", service) for one in routes_of(service)}
    for service, role in _ROLES.items():
        for verb, prefixes in MATRIX[role].prefixes.items():
            for prefix in prefixes:
                if verb is Verb.READ:
                    steps.add((prefix, verb.value, service))
                else:
                    steps.add((service, verb.value, prefix))
    return frozenset(steps)


def _store(prefix: str, note: str) -> DrawnState:
    return DrawnState(name=prefix, title=f"{prefix.partition('/')[0]}/", kind="store", note=note)


def _write(source: str, prefix: str, label: str) -> DrawnEdge:
    events = frozenset({Verb.WRITE.value})
    return DrawnEdge(source=source, target=prefix, label=label, events=events)


def _read(prefix: str, target: str, label: str) -> DrawnEdge:
    return DrawnEdge(source=prefix, target=target, label=label, events=frozenset({Verb.READ.value}))


DRAWING: Final = Drawing(
    name="batch-path",
    title="The path of a batch",
    summary=(
        "Every object between a sender and an answer: which service writes it, and which one reads"
        " it next. An arrow into the store is a right to write, an arrow out of it a right to read."
    ),
    states=(
        DrawnState(name="agent", title="agent", kind="start", note="seals the batch in its spool"),
        DrawnState(
            name="gateway", title="gateway", kind="action", note="200, 409 conflict, 503 send again"
        ),
        _store(keys.RAW_BLOBS, "the frame, under its sha256"),
        _store(keys.ACCEPTED, "the manifest: which sha256 owns the identity"),
        _store(keys.QUARANTINE, "bytes that were refused"),
        _store(keys.GATEWAYS, "journals of what was accepted"),
        DrawnState(
            name="reconciler", title="reconciler", kind="action", note="verifies each blob once"
        ),
        _store(keys.ACCEPTED_BY_TIME, "and raw-blobs-by-time/: indexes"),
        _store(keys.WORK_LISTS, "work lists of batches"),
        _store(keys.QUEUE, "one register for each lane"),
        DrawnState(name="spark", title="Spark: ingest", kind="action", note="exactly once"),
        _store(keys.LAKE, "Delta tables"),
        DrawnState(name="query", title="query", kind="action", note="DuckDB over named files"),
        DrawnState(name="client", title="client, console", kind="start"),
        DrawnState(name="audit", title="audit", kind="action", note="lists everything"),
        _store(keys.AUDIT, "signed certificates"),
        DrawnState(name="gc", title="garbage collection", kind="action", note="only with a proof"),
    ),
    edges=(
        arrow("agent", "gateway", "uploads", "POST /v1/batches", "POST /v1/batches:many"),
        _write("gateway", keys.RAW_BLOBS, "1. creates the blob once"),
        _write("gateway", keys.ACCEPTED, "2. creates the manifest once"),
        _write("gateway", keys.QUARANTINE, "or records a conflict"),
        _write("gateway", keys.GATEWAYS, "names it in its journal"),
        _read(keys.RAW_BLOBS, "reconciler", "verified"),
        _read(keys.RAW_BLOBS, "spark", "decoded"),
        _read(keys.ACCEPTED, "reconciler", "found by a list or an event"),
        _read(keys.ACCEPTED, "audit", "listed"),
        _read(keys.QUARANTINE, "audit", "listed"),
        _read(keys.GATEWAYS, "reconciler", "found by the journal"),
        _write("reconciler", keys.ACCEPTED_BY_TIME, "3. writes the indexes"),
        _write("reconciler", keys.WORK_LISTS, "4. writes a work list"),
        _write("reconciler", keys.QUEUE, "5. appends it by a swap"),
        _read(keys.ACCEPTED_BY_TIME, "audit", "compared"),
        _read(keys.WORK_LISTS, "spark", "fetched"),
        _read(keys.QUEUE, "spark", "the next entries"),
        _read(keys.QUEUE, "query", "pending batches"),
        _write("spark", keys.LAKE, "6. commits rows and position together"),
        _write("spark", keys.QUEUE, "7. acknowledges"),
        _read(keys.LAKE, "query", "read"),
        arrow("client", "query", "searches", "GET /v1/query"),
        _write("audit", keys.AUDIT, "certifies"),
        _read(keys.AUDIT, "gc", "verified"),
        DrawnEdge(
            source="gc",
            target=keys.RAW_BLOBS,
            label="deletes a version that no manifest names",
            events=frozenset({Verb.DELETE_VERSION.value}),
        ),
    ),
    explore=explore,
    is_complete=False,
)
