"""The `sluice` command: load each command on demand, and turn errors into exit codes."""

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
    "init": ("sluice_cli.init:init", "Create the authority's settings."),
    "switch": ("sluice_cli.switch:switch", "Change the acceptance mode."),
    "doctor": ("sluice_cli.doctor:doctor", "Test the store's guarantees with races."),
    "gateway": ("sluice_cli.gateway:gateway", "Serve uploads."),
    "reconciler": (
        "sluice_cli.reconciler:reconciler",
        ("Discover, index and enqueue accepted batches."),
    ),
    "agent": ("sluice_cli.agent:app", "Ship files and host metrics, and manage parked batches."),
    "forward": ("sluice_cli.forward:forward", "Ship standard input."),
    "upload": ("sluice_cli.upload:upload", "Send one frame and print the response."),
    "frame": ("sluice_cli.frame:app", "Make frames from NDJSON, and inspect them."),
    "spark": ("sluice_cli.spark:app", "Run the Spark jobs of the lake."),
    "query": ("sluice_cli.query:app", "Search records by time, text and agent."),
    "batches": ("sluice_cli.batches:batches", "List accepted batches."),
    "gaps": ("sluice_cli.gaps:gaps", "List missing sequence numbers by agent."),
    "explain": ("sluice_cli.explain:explain", "Show the complete path of one batch."),
    "queue": ("sluice_cli.queue:app", "Show the backlog of the queue."),
    "conflicts": ("sluice_cli.conflicts:app", "List, show and resolve conflicts."),
    "delete": ("sluice_cli.delete:delete", "Hide records that match conditions, and remove them."),
    "rebuild": ("sluice_cli.rebuild:rebuild", "Rebuild indexes, work lists and queues."),
    "audit": ("sluice_cli.audit:app", "Audit the store and sign a certificate."),
    "gc": ("sluice_cli.gc:app", "Delete orphan blobs, each with a proof."),
    "policies": ("sluice_cli.policies:app", "Render, prove and apply bucket and IAM policies."),
    "config": ("sluice_cli.config:app", "Show each setting and its source."),
}
"""Each command, its module and its help; a module is imported only when its command runs."""


def build() -> App:
    """Return the command-line application.

    Raises:
        BadUsage: The settings file cannot be read or contains an unknown key.
    """
    path, values = read_file()
    refuse_unknown(path, values, frozenset(COMMANDS))
    app = App(
        name="sluice",
        help="Active-active, content-addressed acceptance of logs and metrics into a Delta lake.",
        version=version("sluice"),
        config=(Env("SLUICE_"), FromFile(path, values)),
        result_action="return_value",
    )
    for name, (place, summary) in COMMANDS.items():
        app.command(place, name=name, help=summary)
    return app


def main() -> NoReturn:
    """Run the command line and exit with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(tokens: list[str]) -> int:
    """Run one command line.

    Returns:
        The exit code: 0 done, 1 a problem was found, 2 bad usage, 3 the store is unreachable.
    """
    configure_logs()
    try:
        result = build()(tokens, exit_on_error=False)
    except CycloptsError:  # cyclopts has already printed the error and the usage
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
