"""`sluice agent`: ship files and host metrics, and look after parked batches."""

import asyncio
import dataclasses
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, Parameter
from rich.console import Console

from sluice_agent.app import run_agent
from sluice_agent.parked import ParkedBatch, drop_parked, list_parked, retry_parked
from sluice_agent.settings import AgentSettings, default_agent_id
from sluice_agent.signing_key import make_key, principal_entry, read_key
from sluice_agent.tasks import AgentRunResult
from sluice_cli.common import Json
from sluice_cli.output import emit, format_size
from sluice_protocol.errors import ExitCode

app = App(name="agent", help="Ship files and host metrics; look after parked batches.")
parked = App(name="parked", help="Batches that no gateway takes as they are.")
app.command(parked)

SPOOL_DEFAULT: Final = Path(".sluice-agent/spool")
KEY_DEFAULT: Final = Path(".sluice-agent/key.pem")

Ids = Annotated[tuple[str, ...], Parameter(name="name", help="Names as `parked list` shows them.")]
All = Annotated[bool, Parameter(name="--all", negative="", help="Every parked batch.")]
SpoolPath = Annotated[Path, Parameter(name="--spool", help="The spool's directory.")]


@app.command
def run(*, settings: Annotated[AgentSettings, Parameter(name="*")], json: Json = False) -> int:
    """Ships files and host metrics until SIGTERM, or with --once until all is accepted.

    What is not accepted by then waits in the spool for the next run.
    """
    settings = with_key(settings)
    outcome = run_until_signal(lambda stop: run_agent(settings, stop=stop))
    emit(outcome, as_json=json, human=lambda console: draw_outcome(console, outcome))
    return exit_code(outcome, all_accepted=settings.once)


@app.command
def init(*, key: Path = KEY_DEFAULT, agent_id: str | None = None, json: Json = False) -> None:
    """Makes an Ed25519 key, readable by its owner alone, and prints the principal entry.

    A key that stands there already is kept and its entry is printed again.
    """
    made = read_key(key) if key.exists() else make_key(key)
    name = agent_id or default_agent_id()
    entry = principal_entry(name, name, made)
    value = {
        "key": str(key),
        "key_id": made.key_id,
        "ed25519": made.public_base64,
        "agent_id": name,
        "principal": entry,
    }
    emit(value, as_json=json, human=lambda console: console.print(entry, end="", markup=False))


@parked.command(name="list")
def list_(*, spool: SpoolPath = SPOOL_DEFAULT, json: Json = False) -> int:
    """Lists parked batches and why each was parked; exits 1 when there are any."""
    found = list_parked(spool)
    emit(found, as_json=json, human=lambda console: _draw(console, found))
    return ExitCode.FOUND_WRONG.value if found else ExitCode.DONE.value


@parked.command
def drop(
    *name: str, spool: SpoolPath = SPOOL_DEFAULT, every: All = False, json: Json = False
) -> None:
    """Removes parked batches for ever: their records are lost unless another agent sent them."""
    done = drop_parked(spool, name, every=every)
    emit(done, as_json=json, human=lambda console: _told(console, "dropped", done))


@parked.command
def retry(
    *name: str, spool: SpoolPath = SPOOL_DEFAULT, every: All = False, json: Json = False
) -> None:
    """Hands parked batches back: the agent sends the same bytes again within a second."""
    done = retry_parked(spool, name, every=every)
    emit(done, as_json=json, human=lambda console: _told(console, "to be sent again", done))


def with_key(settings: AgentSettings) -> AgentSettings:
    """Takes the key that `agent init` made here when none is named and no certificate is."""
    if settings.key is None and settings.tls_cert is None and KEY_DEFAULT.exists():
        return dataclasses.replace(settings, key=KEY_DEFAULT)
    return settings


def run_until_signal(
    start: Callable[[asyncio.Event], Coroutine[None, None, AgentRunResult]],
) -> AgentRunResult:
    """Runs an agent and tells it to stop on SIGTERM or SIGINT."""

    async def main() -> AgentRunResult:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        return await start(stop)

    return asyncio.run(main())


def exit_code(outcome: AgentRunResult, *, all_accepted: bool) -> int:
    """Gives 1 when a batch was parked or dropped, or waits although all had to be accepted."""
    wrong = outcome.parked or outcome.dropped_records or (all_accepted and outcome.waiting)
    return ExitCode.FOUND_WRONG.value if wrong else ExitCode.DONE.value


def draw_outcome(console: Console, outcome: AgentRunResult) -> None:
    """Prints what a run did."""
    fields = dataclasses.asdict(outcome)
    console.print(" ".join(f"{name}={value}" for name, value in fields.items()), markup=False)


def _draw(console: Console, found: tuple[ParkedBatch, ...]) -> None:
    if not found:
        console.print("nothing is parked")
    for one in found:
        span = f"{one.agent_id} {one.boot_id} {one.seq_start}-{one.seq_end}"
        told = f"{one.reason} (HTTP {one.status} from {one.gateway})"
        console.print(f"{one.name}\n  {span} {format_size(one.frame_bytes)} {told}", markup=False)


def _told(console: Console, what: str, names: tuple[str, ...]) -> None:
    for name in names:
        console.print(f"{what}: {name}", markup=False)
