"""The table of commands. It imports nothing, so that `sluice --help` is quick."""

from typing import Final

SUMMARY: Final = (
    "Active-active, content-addressed acceptance of logs, metrics and traces into a Delta lake."
)

COMMANDS: Final = {
    "up": ("sluice_cli.up.command:up", "Run everything on this machine until Ctrl-C."),
    "init": ("sluice_cli.init:init", "Create the authority's settings."),
    "switch": ("sluice_cli.switch:switch", "Change the acceptance mode."),
    "doctor": ("sluice_cli.doctor:doctor", "Test the store's guarantees with races."),
    "gateway": ("sluice_cli.gateway:gateway", "Serve uploads."),
    "token": ("sluice_cli.token:app", "Create tokens for clients of the doors."),
    "reconciler": (
        "sluice_cli.reconciler:app",
        ("Discover, index and enqueue accepted batches."),
    ),
    "agent": ("sluice_cli.agent:app", "Ship files and host metrics, and manage parked batches."),
    "forward": ("sluice_cli.forward:forward", "Ship standard input."),
    "upload": ("sluice_cli.upload:upload", "Send one frame and print the response."),
    "verify": (
        "sluice_cli.verify.command:verify",
        "Upload through gateways, and check what the store has.",
    ),
    "frame": ("sluice_cli.frame:app", "Make frames from NDJSON, and inspect them."),
    "spark": ("sluice_cli.spark:app", "Run the Spark jobs of the lake."),
    "query": ("sluice_cli.query:app", "Search records by time, text and agent."),
    "fields": ("sluice_cli.fields:fields", "List the fields of records, or the values of one."),
    "metrics": ("sluice_cli.metrics:metrics", "List metrics, or plot one."),
    "sql": ("sluice_cli.sql:sql", "Run a SELECT over all tables."),
    "console": ("sluice_cli.console:console", "Serve the web console."),
    "batches": ("sluice_cli.batches:batches", "List accepted batches."),
    "gaps": ("sluice_cli.gaps:gaps", "List missing sequence numbers by agent."),
    "explain": ("sluice_cli.explain:explain", "Show the complete path of one batch."),
    "queue": ("sluice_cli.queue:app", "Show the backlog of the queue."),
    "conflicts": ("sluice_cli.conflicts:app", "List, show and resolve conflicts."),
    "delete": ("sluice_cli.delete:delete", "Hide records that match conditions, and remove them."),
    "retention": ("sluice_cli.retention:app", "Decide how long raw batches are kept."),
    "erase": ("sluice_cli.erase:app", "Make matching records vanish from every copy."),
    "hold": ("sluice_cli.hold:app", "Keep batches and records of a case."),
    "columns": ("sluice_cli.columns:app", "Promote attributes to columns of the lake."),
    "rebuild": ("sluice_cli.rebuild:rebuild", "Rebuild indexes, work lists and queues."),
    "restore": ("sluice_cli.restore:restore", "Apply newer decisions to a restored copy."),
    "audit": ("sluice_cli.audit:app", "Audit the store and sign a certificate."),
    "gc": ("sluice_cli.gc:app", "Delete orphan blobs, each with a proof."),
    "maintain": ("sluice_cli.maintain:app", "Run all maintenance of a store by policies."),
    "policies": ("sluice_cli.policies:app", "Render, prove and apply bucket and IAM policies."),
    "cost": ("sluice_cli.cost:cost", "Compute the cost of a deployment at list prices."),
    "status": ("sluice_cli.status:status", "Show the state of the whole deployment."),
    "support": ("sluice_cli.support:app", "Collect what a report about a fault needs."),
    "config": ("sluice_cli.config_show:app", "Show each setting and its source."),
    "completion": (
        "sluice_cli.shell.completion:completion",
        "Print the completion script of a shell.",
    ),
}
"""Each command, its module and its help; a module is imported only when its command runs."""


def format_help() -> str:
    """Return the text of `sluice --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        (
            "Usage: sluice COMMAND [OPTIONS]",
            "",
            SUMMARY,
            "",
            "Commands:",
            *lines,
            "",
            "`sluice COMMAND --help` shows the options of a command. Its option `--name` is also",
            "the variable SLUICE_COMMAND_NAME, and the key `name` of [COMMAND] in sluice.toml.",
            "",
        )
    )
