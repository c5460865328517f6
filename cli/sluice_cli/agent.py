"""`sluice agent`: ship files and host metrics, and manage parked batches."""

import asyncio
import dataclasses
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from sluice_agent.settings import SPOOL_DEFAULT, AgentSettings, default_agent_id
from sluice_cli.shell.options import Json
from sluice_cli.shell.output import emit, format_size
from sluice_protocol.errors import ExitCode
from sluice_protocol.identity import check_sender_id

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_agent.spool.parked import ParkedBatch
    from sluice_agent.tasks import AgentRunResult

KEY_DEFAULT: Final = Path(".sluice-agent/key.pem")

app = App(name="agent", help="Ship files and host metrics, and manage parked batches.")
parked = App(name="parked", help="Manage batches that gateways rejected.")
app.command(parked)

All = Annotated[bool, Parameter(name="--all", negative="", help="All parked batches.")]
SpoolPath = Annotated[Path, Parameter(name="--spool", help="Directory of the spool.")]


@app.command
def run(*, settings: Annotated[AgentSettings, Parameter(name="*")], json: Json = False) -> int:
    """Ship files and host metrics until SIGTERM, or with --once until all batches are accepted.

    Batches that are not accepted by then stay in the spool for the next run.
    """
    from sluice_agent.app import run_agent  # noqa: PLC0415 - quick help

    settings = with_key(settings)
    outcome = run_until_signal(lambda stop: run_agent(settings, stop=stop))
    emit(outcome, as_json=json, human=lambda console: draw_outcome(console, outcome))
    return exit_code(outcome, all_accepted=settings.once)


@app.command
def init(*, key: Path = KEY_DEFAULT, agent_id: str | None = None, json: Json = False) -> None:
    """Create an Ed25519 key, readable by its owner only, and print its principal entry.

    An existing key is kept, and its entry is printed again.
    """
    from sluice_agent.sending.signing_key import make_key, principal_entry, read_key  # noqa: PLC0415 - quick help

    name = agent_id or default_agent_id()
    check_sender_id(name)
    made = read_key(key) if key.exists() else make_key(key)
    entry = principal_entry(name, name, made)
    value = {
        "key": str(key),
        "key_id": made.key_id,
        "ed25519": made.public_base64,
        "agent_id": name,
        "principal": entry,
    }
    emit(
        value, as_json=json, human=lambda console: console.print(f"\n{entry}", end="", markup=False)
    )


@parked.command(name="list")
def list_(*, spool: SpoolPath = SPOOL_DEFAULT, json: Json = False) -> int:
    """List parked batches and the reason for each; exit 1 if there are any."""
    from sluice_agent.spool.parked import list_parked  # noqa: PLC0415 - quick help

    found = list_parked(spool)
    emit(found, as_json=json, human=lambda console: _draw(console, found))
    return ExitCode.FOUND_WRONG.value if found else ExitCode.DONE.value


@parked.command
def drop(
    *name: str, spool: SpoolPath = SPOOL_DEFAULT, every: All = False, json: Json = False
) -> None:
    """Delete parked batches permanently; records that no other agent sent are lost."""
    from sluice_agent.spool.parked import drop_parked  # noqa: PLC0415 - quick help

    done = drop_parked(spool, name, every=every)
    emit(done, as_json=json, human=lambda console: _print_names(console, "dropped", done))


@parked.command
def retry(
    *name: str, spool: SpoolPath = SPOOL_DEFAULT, every: All = False, json: Json = False
) -> None:
    """Return parked batches to the agent, which sends the same bytes again within a second."""
    from sluice_agent.spool.parked import retry_parked  # noqa: PLC0415 - quick help

    done = retry_parked(spool, name, every=every)
    emit(done, as_json=json, human=lambda console: _print_names(console, "queued for retry", done))


def _draw(console: "Console", found: tuple["ParkedBatch", ...]) -> None:
    if not found:
        console.print("no parked batches")
    for one in found:
        span = f"{one.agent_id} {one.boot_id} {one.seq_start}-{one.seq_end}"
        told = f"{one.reason} (HTTP {one.status} from {one.gateway})"
        console.print(f"{one.name}\n  {span} {format_size(one.frame_bytes)} {told}", markup=False)


def _print_names(console: "Console", what: str, names: tuple[str, ...]) -> None:
    for name in names:
        console.print(f"{what}: {name}", markup=False)


def with_key(settings: AgentSettings) -> AgentSettings:
    """Use the key that `agent init` created here if neither key nor certificate is set."""
    if settings.key is None and settings.tls_cert is None and KEY_DEFAULT.exists():
        return dataclasses.replace(settings, key=KEY_DEFAULT)
    return settings


def run_until_signal(
    start: Callable[[asyncio.Event], Coroutine[None, None, "AgentRunResult"]],
) -> "AgentRunResult":
    """Run an agent until it ends; SIGTERM and SIGINT request a stop."""

    async def main() -> "AgentRunResult":
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        return await start(stop)

    return asyncio.run(main())


def exit_code(outcome: "AgentRunResult", *, all_accepted: bool) -> int:
    """Return 1 if a batch was parked or dropped, or is pending although all had to be accepted."""
    wrong = outcome.parked or outcome.dropped_records or (all_accepted and outcome.waiting)
    return ExitCode.FOUND_WRONG.value if wrong else ExitCode.DONE.value


def draw_outcome(console: "Console", outcome: "AgentRunResult") -> None:
    """Print the result of a run."""
    fields = dataclasses.asdict(outcome)
    console.print(" ".join(f"{name}={value}" for name, value in fields.items()), markup=False)
