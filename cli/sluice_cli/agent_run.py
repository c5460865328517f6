"""Run an agent until a signal, and report the result.

A plain command line of it is read without the command-line library.
"""

import asyncio
import dataclasses
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice_agent.settings import AgentSettings
from sluice_cli.output import emit
from sluice_cli.plain_commands import FLAG, PlainCommand
from sluice_protocol.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_agent.tasks import AgentRunResult

KEY_DEFAULT: Final = Path(".sluice-agent/key.pem")


def run_and_report(*, settings: AgentSettings, json: bool) -> int:
    """Ship files and host metrics until a signal, print the result, and return the exit code.

    Raises:
        SluiceError: The agent cannot continue.
    """
    from sluice_agent.app import run_agent  # noqa: PLC0415 - quick help

    settings = with_key(settings)
    outcome = run_until_signal(lambda stop: run_agent(settings, stop=stop))
    emit(outcome, as_json=json, human=lambda console: draw_outcome(console, outcome))
    return exit_code(outcome, all_accepted=settings.once)


PLAIN: Final = PlainCommand(settings=AgentSettings, options={"json": FLAG}, run=run_and_report)


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
