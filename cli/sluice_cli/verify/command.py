"""`sluice verify`: make a history with real gateways, and check the store after it."""

import asyncio
import json as json_module
import random  # noqa: TID251 - the type of seeded arguments
import shlex
import ssl
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice_agent.sending.gateway_choice import GatewayTarget
from sluice_agent.sending.signing_key import SigningKey, read_key
from sluice_agent.sending.transport import (
    HttpTransport,
    UploadResult,
    client_tls,
    open_upload_session,
)
from sluice_agent.sending.upload_decisions import (
    ConnectionFailure,
    Forget,
    NoGatewayResponse,
    SendAgain,
    StopSending,
    decide_reaction,
)
from sluice_cli.agent import KEY_DEFAULT
from sluice_cli.shell.asking import open_searcher
from sluice_cli.shell.options import STORE_DEFAULT, FoundStoreUrl, Json
from sluice_cli.shell.output import emit
from sluice_cli.verify.checks import find_violations, read_uploads
from sluice_cli.verify.recording import Recorder
from sluice_cli.verify.state import RunState, read_state
from sluice_cli.verify.uploads import Batch, Uploads
from sluice_protocol.clock import Clock
from sluice_protocol.distribution import read_version
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key
from sluice_protocol.outcomes import Found
from sluice_protocol.settings_checks import check_number, is_base_url
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_query.settings import QuerySettings
from sluice_store import ObjectStore, StoreMode, open_deployment, read_authority

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_query.search import Searcher

AGENT: Final = "verify"
"""The agent of every run, so that its records can be recognised."""
CLIENTS: Final = 4
UPLOAD_S: Final = 15.0
CONNECT_S: Final = 5.0
GIVEN_UP: Final = 0.1
"""Share of the tries whose response the client does not wait for."""
GIVEN_UP_S_MAX: Final = 0.05
LAST_S: Final = 60.0
"""Time after the run in which clients settle their last batches."""
SETTLED_S: Final = 300
"""Time in which each accepted batch must be found: transfer of a spool, reconciler, ingestion."""
PAUSE_S: Final = 3.0
SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of a run.

    Attributes:
        folder: The history.
        unchecked: Why the records were not compared; empty if they were.
        delete: The command that hides the records of this run.
    """

    run: str
    folder: str
    uploads: int
    accepted: int
    conflicts: int
    unknown: int
    gaps: int
    records: int
    unchecked: str
    violations: tuple[str, ...]
    delete: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    name: str
    targets: tuple[GatewayTarget, ...]
    seconds: float
    folder: Path
    url: str


def verify(
    *,
    against: str,
    key: Path | None = None,
    store: FoundStoreUrl = STORE_DEFAULT,
    minutes: float = 1.0,
    tls_ca: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    json: Json = False,
) -> int:
    """Upload through real gateways, with conflicts and retries, and check what the store has.

    Every try is recorded (docs/histories.md). The records, gaps and conflicts of a run remain in
    the store below the agent `verify`.

    Args:
        against: Base URLs of gateways of one deployment, separated by commas.
        key: File of the Ed25519 key; default is the key that `sluice agent init` created here.
        store: The store of these gateways; it is only read.
        minutes: Duration of the uploads.
        tls_ca: File of CA certificates, PEM; default is the system's.
        tls_cert: File of the client certificate for mTLS, PEM.
        tls_key: File of the client certificate's key; default is the certificate's file.
        json: Print JSON for programs.

    Returns:
        0 if no promise is broken, otherwise 1.
    """
    check_number("minutes", minutes, 0, above=True)
    targets = tuple(GatewayTarget(url=one.strip()) for one in against.split(","))
    for target in targets:
        if not is_base_url(target.url):
            raise BadUsage(
                f"--against must be base URLs such as http://host:port, against=`{target.url}`"
            )
    name = SystemIds().ulid()
    run = _Run(
        name=name,
        targets=targets,
        seconds=minutes * 60,
        folder=Path(f"sluice-verify-{name}"),
        url=store,
    )
    if key is None and tls_cert is None and KEY_DEFAULT.exists():
        key = KEY_DEFAULT
    signing = read_key(key) if key is not None else None
    verdict = asyncio.run(_verify(run, signing, client_tls(tls_ca, tls_cert, tls_key)))
    emit(verdict, as_json=json, human=lambda console: _draw(console, verdict))
    return ExitCode.FOUND_WRONG.value if verdict.violations else ExitCode.DONE.value


async def _verify(run: _Run, key: SigningKey | None, tls: ssl.SSLContext | None) -> VerifyReport:
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_deployment(run.url, StoreMode.READ))
        searcher = await open_searcher(stack, run.url, None, QuerySettings())
        session = await stack.enter_async_context(
            open_upload_session(tls=tls, connections_max=0, total_s=UPLOAD_S, connect_s=CONNECT_S)
        )
        transport = HttpTransport(session, key=key, clock=clock)
        await _check_gateways(run, transport, store)
        since_ns = clock.now_ns()
        with Recorder(run.folder, clock, f"{run.name}-") as recorder:
            await _upload(run, recorder, transport)
        state, violations = await _settled(run, store, searcher, since_ns, clock)
    state.write(run.folder / "state.jsonl")
    meta = {
        "run": run.name,
        "agent": AGENT,
        "gateways": [one.url for one in run.targets],
        "minutes": run.seconds / 60,
        "version": read_version(),
        "faults": [],
        "unread": ["row"] if state.rows is None else [],
    }
    (run.folder / "meta.json").write_text(json_module.dumps(meta, indent=2) + "\n")
    uploads = read_uploads(run.folder / "history.jsonl")
    where = f"agent = '{AGENT}' and body contains '{run.name}'"
    return VerifyReport(
        run=run.name,
        folder=str(run.folder),
        uploads=len(uploads),
        accepted=sum(one.kind == "manifest" for one in state.manifests),
        conflicts=sum(one.kind == "quarantine" for one in state.manifests),
        unknown=sum(one.result == "unknown" for one in uploads),
        gaps=len(state.gaps),
        records=len(state.rows or ()),
        unchecked="; ".join(state.reasons) if state.rows is None else "",
        violations=tuple(violations),
        delete=f'sluice delete --store {shlex.quote(run.url)} --where "{where}"',
    )


async def _check_gateways(run: _Run, transport: HttpTransport, store: ObjectStore) -> None:
    """Send one batch through each gateway, and find it in the store, before anything is recorded.

    A gateway with a spool transfers it later, so there it is not searched for.
    """
    spool = (await read_authority(store)).acceptance == "local_spool"
    for number, target in enumerate(run.targets):
        who = Identity(
            agent_id=AGENT, boot_id=f"first-{run.name}", seq_start=number, seq_end=number
        )
        batch = Batch(who, f"{run.name}-first", SystemClock().now_ns())
        received = await transport.send(target, batch.request)
        _check_accepted(target, batch, received)
        if not spool and not isinstance(await store.get(accepted_key(who)), Found):
            raise BadUsage(
                "the gateway has accepted a batch that this store does not contain: --store must be"
                f" that of the gateway, gateway=`{target.url}`, store=`{run.url}`"
            )


def _check_accepted(target: GatewayTarget, batch: Batch, received: UploadResult) -> None:
    response = received.response
    if isinstance(response, NoGatewayResponse):
        raise BadUsage(
            "no response: check that a gateway listens at this URL,"
            f" reason=`{response.failure}`, gateway=`{target.url}`"
        )
    reaction = decide_reaction(response, sent=batch.sha256)
    if isinstance(reaction, Forget):
        return
    if isinstance(reaction, SendAgain) and reaction.is_foreign:
        raise BadUsage(
            "the response is not that of a gateway: check the URL and the proxies in front of it,"
            f" status=`{response.status}`, gateway=`{target.url}`"
        )
    if isinstance(reaction, StopSending):
        raise BadUsage(
            f"the gateway refuses this agent: `sluice agent init --agent-id {batch.who.agent_id}`"
            " makes a key and prints the entry for the gateways' principals file,"
            f" code=`{response.code}`, gateway=`{target.url}`"
        )
    raise BadUsage(
        f"the gateway does not accept the first batch: try again later,"
        f" status=`{response.status}`, code=`{response.code}`, gateway=`{target.url}`"
    )


async def _upload(run: _Run, recorder: Recorder, transport: HttpTransport) -> None:
    """Run the clients; a try that does not end at the end of the run is unknown."""

    async def send(batches: list[Batch], _: list[int], rng: random.Random) -> list[UploadResult]:
        target = rng.choice(run.targets)
        requests = [one.request for one in batches]
        given_up_s = rng.uniform(0, GIVEN_UP_S_MAX) if rng.random() < GIVEN_UP else None
        try:
            async with asyncio.timeout(given_up_s):
                if len(requests) == 1:
                    return [await transport.send(target, requests[0])]
                found = await transport.send_list(target, requests)
        except TimeoutError:
            found = UploadResult(response=NoGatewayResponse(failure=ConnectionFailure.TIMEOUT))
        return [found] * len(requests) if isinstance(found, UploadResult) else list(found)

    def names(number: int, boot: int) -> tuple[str, str]:
        return AGENT, f"{run.name}-{number}-{boot}"

    uploads = Uploads(recorder, recorder.clock.now_ns(), names, send)
    with suppress(TimeoutError):
        async with asyncio.timeout(run.seconds + LAST_S), asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(uploads.run(number))
            tasks.create_task(uploads.repeat(CLIENTS))
            await recorder.clock.sleep(run.seconds)
            uploads.stop.set()


async def _settled(
    run: _Run, store: ObjectStore, searcher: "Searcher", since_ns: int, clock: Clock
) -> tuple[RunState, list[str]]:
    """Read the state until it breaks no promise, or until everything had time to arrive."""
    uploads = read_uploads(run.folder / "history.jsonl")
    until_ns, end_ns = clock.now_ns(), clock.monotonic_ns() + SETTLED_S * NS_PER_S
    while True:
        state = await read_state(store, searcher, AGENT, run.name, since_ns, until_ns)
        violations = list(find_violations(uploads, state))
        if not violations or clock.monotonic_ns() > end_ns:
            return state, violations
        await clock.sleep(PAUSE_S)


def _draw(console: "Console", verdict: VerifyReport) -> None:
    console.print(
        f"{verdict.uploads} uploads, {verdict.unknown} of them with an unknown outcome:"
        f" {verdict.accepted} batches accepted, {verdict.conflicts} conflicts"
    )
    if verdict.unchecked:
        console.print(f"the records were not compared: {verdict.unchecked}")
    else:
        console.print(f"{verdict.records} records in the tables and pending batches")
    for line in verdict.violations[:SHOWN_MAX]:
        console.print(f"BROKEN  {line}")
    console.print(f"{len(verdict.violations)} broken promises; history: {verdict.folder}")
    console.print(f"left in the store: {verdict.gaps} gaps, {verdict.conflicts} open conflicts")
    console.print(f"to hide its records: {verdict.delete}")
