"""The `sluice` command: it mounts every command lazily and turns errors into exit codes."""

import sys
from importlib.metadata import version
from typing import Final, NoReturn

from cyclopts import App, CycloptsError
from cyclopts.config import Env

from sluice_cli.config import FromFile, read_file, refuse_unknown
from sluice_cli.logs import configure_logs
from sluice_cli.output import fail
from sluice_protocol.errors import BadUsage, ExitCode, SluiceError

COMMANDS: Final = {
    "init": ("sluice_cli.init:init", "Write the authority's settings, once."),
    "switch": ("sluice_cli.switch:switch", "Change where acceptance happens."),
    "doctor": ("sluice_cli.doctor:doctor", "Prove by racing what the store promises."),
    "gateway": ("sluice_cli.gateway:gateway", "Serve uploads."),
    "reconciler": ("sluice_cli.reconciler:reconciler", "Discover, index and enqueue batches."),
    "agent": ("sluice_cli.agent:app", "Ship files and host metrics; look after parked batches."),
    "forward": ("sluice_cli.forward:forward", "Ship standard input."),
    "upload": ("sluice_cli.upload:upload", "Send one frame and print the answer."),
    "frame": ("sluice_cli.frame:app", "Make frames from NDJSON and look into them."),
    "spark": ("sluice_cli.spark:app", "Run the pipeline's jobs."),
    "query": ("sluice_cli.query:app", "Search records by time, text and agent."),
    "batches": ("sluice_cli.batches:batches", "List what was accepted."),
    "gaps": ("sluice_cli.gaps:gaps", "List what is missing, agent by agent."),
    "explain": ("sluice_cli.explain:explain", "Tell the whole path of one batch."),
    "queue": ("sluice_cli.queue:app", "Tell how far behind the queue is."),
    "conflicts": ("sluice_cli.conflicts:app", "List, show and resolve conflicts."),
    "delete": ("sluice_cli.delete:delete", "Hide and remove records by a rule."),
    "rebuild": ("sluice_cli.rebuild:rebuild", "Make everything derived again."),
    "audit": ("sluice_cli.audit:app", "Audit the store and certify what was seen."),
    "gc": ("sluice_cli.gc:app", "Delete orphan blobs, only with a proof."),
    "policies": ("sluice_cli.policies:app", "Render, prove and apply bucket and IAM policies."),
    "config": ("sluice_cli.show:app", "Show each setting and where it came from."),
}
"""Each command and where it lives; a module is imported only when its command runs."""


def build() -> App:
    """Gives the command-line application.

    Raises:
        BadUsage: The settings file cannot be read or holds an unknown key.
    """
    path, values = read_file()
    refuse_unknown(path, values, frozenset(COMMANDS))
    app = App(
        name="sluice",
        help="Active-active, content-addressed acceptance of batches, and their way into the lake.",
        version=version("sluice"),
        config=(Env("SLUICE_"), FromFile(path, values)),
        result_action="return_value",
    )
    for name, (place, summary) in COMMANDS.items():
        app.command(place, name=name, help=summary)
    return app


def main() -> NoReturn:
    """Runs the command line and leaves with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(tokens: list[str]) -> int:
    """Runs one command line.

    Returns:
        The exit code: 0 done, 1 found something wrong, 2 bad usage, 3 store unreachable.
    """
    configure_logs()
    try:
        result = build()(tokens, exit_on_error=False)
    except CycloptsError:  # it has printed what is wrong and how the command is used
        return ExitCode.BAD_USAGE.value
    except BadUsage as error:
        fail(str(error))
        return error.exit_code.value
    except SluiceError as error:
        fail(str(error))
        return error.exit_code.value
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) and not isinstance(result, bool) else 0
