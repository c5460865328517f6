"""Run an agent until a signal, and report the result.

`run_plain` starts `sluice agent run` without the command-line library.
"""

import asyncio
import dataclasses
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice_agent.settings import AgentSettings
from sluice_cli.environment import given_variables
from sluice_cli.output import emit
from sluice_cli.plain_options import read_plain
from sluice_cli.settings_file import read_file
from sluice_protocol.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_agent.tasks import AgentRunResult

KEY_DEFAULT: Final = Path(".sluice-agent/key.pem")
_COMMAND: Final = ("agent", "run")


def run_plain(tokens: list[str]) -> int | None:
    """Run an agent with the options of a plain command line.

    Returns:
        The exit code, or None if the command-line library has to parse the command line.

    Raises:
        SluiceError: The settings file is wrong, or the agent cannot continue.
    """
    read = read_settings(tokens, table_of(read_file()[1]))
    return None if read is None else run_and_report(read[0], json=read[1])


def read_settings(
    tokens: list[str], table: Mapping[str, object] | None
) -> tuple[AgentSettings, bool] | None:
    """Return the settings of a plain command line and whether to print JSON, or None.

    Args:
        tokens: The words behind `agent run`.
        table: The command's table of the settings file; None if the library has to read it.

    Raises:
        BadUsage: A value is out of range.
    """
    kinds = {one.name: one.type for one in dataclasses.fields(AgentSettings)} | {"json": bool}
    variables = given_variables(_COMMAND, kinds)
    if variables is None or table is None:
        return None
    values = read_plain(kinds, tokens=tokens, variables=variables, table=table)
    if values is None or "gateway" not in values:
        return None
    json = values.pop("json", False) is True
    make: Callable[..., AgentSettings] = AgentSettings
    return make(**values), json


def table_of(values: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return `[agent.run]` of the settings file, or None if the file has more about agents."""
    match values.get("agent", {}):
        case {"run": dict() as table, **others} if not others:
            return table
        case {**others} if not others:
            return {}
        case _:
            return None


def run_and_report(settings: AgentSettings, *, json: bool) -> int:
    """Ship files and host metrics until a signal, print the result, and return the exit code.

    Raises:
        SluiceError: The agent cannot continue.
    """
    from sluice_agent.app import run_agent  # noqa: PLC0415 - quick help

    settings = with_key(settings)
    outcome = run_until_signal(lambda stop: run_agent(settings, stop=stop))
    emit(outcome, as_json=json, human=lambda console: draw_outcome(console, outcome))
    return exit_code(outcome, all_accepted=settings.once)


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
