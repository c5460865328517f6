"""Settings outside of a command line: `sluice.toml`, the `SLUICE_*` variables, and unknown names.

The file is `sluice.toml` in the working directory, or the path in `SLUICE_CONFIG`. A top-level
`store` applies to every command, and a top-level `key_file`, the auditor's key, to those of `audit`
and `gc`. A table with the name of a command contains its options:

    store = "s3://bucket/prefix"
    [gateway]
    listen = "0.0.0.0:8080"

An unknown key is an error, and so is a variable that no option reads: its name is mistyped.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluice_cli.shell.commands import COMMANDS
from sluice_protocol.errors import BadUsage

FILE_DEFAULT: Final = "sluice.toml"
SHARED_KEYS: Final = frozenset({"store", "key_file"})
"""Top-level keys, for each command with an option of that name."""
REFERENCE: Final = "docs/reference/commands.md"
"""The page of all commands and options."""


def read_file() -> tuple[Path, dict[str, Any]]:
    """Read the settings file; a missing default file is empty."""
    named = os.environ.get("SLUICE_CONFIG")
    path = Path(named or FILE_DEFAULT)
    if not path.exists():
        if named:
            raise BadUsage(
                f"settings file not found: set SLUICE_CONFIG to an existing file, path=`{path}`"
            )
        return path, {}
    import tomllib  # noqa: PLC0415 - most machines have no settings file

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except IsADirectoryError as error:
        raise BadUsage(
            f"settings file is a directory: name a file in SLUICE_CONFIG, path=`{path}`"
        ) from error
    except OSError as error:
        raise BadUsage(
            f"cannot read settings file: {error.strerror}; make it readable for this user,"
            f" path=`{path}`"
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadUsage(
            f"settings file is not TOML: {error}; correct this line, path=`{path}`"
        ) from error
    known = SHARED_KEYS | COMMANDS.keys()
    for key in sorted(values.keys() - known):
        raise unknown_key(key, known, path)
    return path, values


def unknown_key(key: str, known: Iterable[str], path: Path) -> BadUsage:
    """Return the error of a key that no command reads; it names the nearest known one.

    Keys contain the names of their tables.
    """
    fixed = FIXED.get(key.rpartition(".")[2])
    if fixed is not None:
        return BadUsage(f"{fixed}: remove it, key=`{key}`, path=`{path}`")
    return BadUsage(
        f"unknown key in settings: the nearest known name is {nearest(key, known)},"
        f" {REFERENCE} lists all, key=`{key}`, path=`{path}`"
    )


COMMANDS_MEANT: Final = {
    "u": "up",
    "uo": "up",
    "pu": "up",
    **dict.fromkeys(("start", "run", "serve", "server", "dev", "all", "upp"), "up"),
    **dict.fromkeys(("search", "find", "grep", "logs", "log", "tail"), "query"),
    **dict.fromkeys(("select", "duckdb", "psql"), "sql"),
    **dict.fromkeys(("labels", "keys", "values", "top"), "fields"),
    **dict.fromkeys(("metric", "series", "plot", "counters"), "metrics"),
    **dict.fromkeys(("health", "check", "info", "ps", "stat", "state"), "status"),
    **dict.fromkeys(("send", "push", "ingest", "post"), "upload"),
    **dict.fromkeys(("create", "new", "setup", "install"), "init"),
    **dict.fromkeys(("ui", "web", "dashboard"), "console"),
    **dict.fromkeys(("rm", "remove"), "delete"),
    **dict.fromkeys(("clean", "cleanup", "prune", "vacuum"), "gc"),
    **dict.fromkeys(("settings", "env"), "config"),
    **dict.fromkeys(("repair", "reindex"), "rebuild"),
    **dict.fromkeys(("where", "show"), "explain"),
    **dict.fromkeys(("trace", "traces", "span", "spans", "tracing"), "query --kind spans"),
    **dict.fromkeys(("ls", "list"), "batches"),
    **dict.fromkeys(("collector", "shipper"), "agent"),
    "test": "doctor",
    "version": "--version",
    **dict.fromkeys(("missing", "holes"), "gaps"),
    **dict.fromkeys(("pipe", "stdin"), "forward"),
    **dict.fromkeys(("key", "tokens", "auth"), "token"),
}
"""Words of other tools, with the command that does the same here."""
OPTIONS_MEANT: Final = {
    **dict.fromkeys(("--since", "--start", "--begin"), ("--from",)),
    **dict.fromkeys(("--until", "--end", "--stop"), ("--to",)),
    **dict.fromkeys(("--follow", "-f", "-F", "--watch", "--live"), ("--follow", "--verbose")),
    **dict.fromkeys(("--query", "--search", "--grep", "--contains", "-e"), ("-q",)),
    **dict.fromkeys(("--timezone", "--tz", "--utc"), ("--zone",)),
    **dict.fromkeys(("-n", "--lines", "--max", "--count", "--head", "--number"), ("--limit",)),
    **dict.fromkeys(("--reverse", "-r", "--desc", "--sort", "--direction"), ("--order",)),
    **dict.fromkeys(("-c", "--fields", "--show"), ("--columns",)),
    **dict.fromkeys(("--group-by", "--groupby", "--label"), ("--by",)),
    **dict.fromkeys(("--aggregate", "--function"), ("--agg",)),
    **dict.fromkeys(("--interval", "--resolution", "--bucket", "--width"), ("--step",)),
    **dict.fromkeys(("--output", "--format", "-o", "--yaml"), ("--output", "--json")),
    **dict.fromkeys(
        ("--host", "--address", "--bind", "--addr", "--port", "-p"), ("--listen", "--port")
    ),
    **dict.fromkeys(("--listen",), ("--port",)),
    **dict.fromkeys(("--dir", "--path", "--data", "--url", "--bucket-url"), ("--store",)),
    **dict.fromkeys(("--agent", "--filter", "--attribute", "--text", "-q"), ("--where",)),
    **dict.fromkeys(("--config", "--file"), ()),
    **dict.fromkeys(("--quiet", "-v", "--debug"), ("--verbose",)),
    **dict.fromkeys(("--check", "--noop", "--plan", "--simulate"), ("--dry-run", "--verify")),
    **dict.fromkeys(("--force", "--confirm", "-y"), ("--yes",)),
    **dict.fromkeys(("--trusted-keys", "--public-key", "--trusted"), ("--key-file",)),
    **dict.fromkeys(("--bucket-policy", "--role-policy", "--lifecycle"), ("--documents",)),
    **dict.fromkeys(("--syslog-tls-cert", "--syslog-tls-key", "--syslog-client-ca"), ("--syslog",)),
    **dict.fromkeys(("--timeout", "--time-limit", "--max-time"), ("--time-s-max",)),
    **dict.fromkeys(("--memory", "--memory-limit", "--max-memory"), ("--memory-bytes-max",)),
    "--buckets": ("--step",),
    "--older-than-days": ("--to",),
    "--otlp": ("--doors",),
}
"""Options of other tools, with those that mean the same here, of which a command may have one."""
FIXED: Final = {
    "journaled_pass_interval_s": "the setting is fixed now, at a day",
    "share_lanes": "the setting is fixed now: reconcilers always share the lanes",
    "margin_s": "the setting is fixed now, at an hour",
    "dedupe_window_s": "the setting is fixed now, at a day",
    "inventory_bucket": "the setting is fixed now: an inventory describes the store's bucket",
}
"""Earlier settings that are constants now, by their last name."""
_PERIODS: Final = frozenset({"interval", "interval-s", "period", "period-s", "every", "schedule"})
"""Words for the period of the tasks of maintenance, as in `--audit.interval-s`."""
_OTHER_WAYS: Final = {
    "--detach": "a command runs in the foreground; docs/deploy.md shows it as a service",
    "--config": "the settings file is `sluice.toml` in this folder, or the path in SLUICE_CONFIG",
    "--endpoint": "endpoint, profile and CA of a bucket are in the store's URL, or in"
    " AWS_ENDPOINT_URL_S3, AWS_PROFILE and AWS_CA_BUNDLE",
    "--event-queue-endpoint": "the endpoint of the queue is in AWS_ENDPOINT_URL_SQS",
    "--master": "Spark's master is that of `spark-submit`, or of the variable MASTER",
    "--driver-memory": "the heap of Spark is in the variable SPARK_DRIVER_MEMORY",
    "--target": "the target of policies is `target` in their settings file",
}
_OTHER_WAYS_OF: Final = {
    **dict.fromkeys(("-d", "--daemon", "--background"), "--detach"),
    "--file": "--config",
    **dict.fromkeys(("--profile", "--ca-bundle", "--region"), "--endpoint"),
    **{f"--policies.{name}": "--endpoint" for name in ("endpoint", "profile", "ca-bundle")},
    "--policies.target": "--target",
}


def refuse_unknown_command(command: str) -> None:
    """Refuse an unknown command; the error names one that means the same or is similar."""
    if command in COMMANDS:
        return
    near = COMMANDS_MEANT.get(command) or nearest(command, COMMANDS, similarity_min=0.6)
    hint = f"did you mean `sluice {near}`? " if near else ""
    raise BadUsage(f"unknown command: {hint}`sluice --help` lists all, command=`{command}`")


def describe_unknown_option(option: str, known: Iterable[str], command: str) -> str:
    """Return the message about an option that a command does not have.

    Options that mean the same are suggested before similar ones: by letters alone, `--step` would
    be suggested for `--since`.
    """
    offered = tuple(known)
    listed = f"`{command} --help` lists all, option=`{option}`"
    fixed = FIXED.get(option.rpartition(".")[2].removeprefix("--").replace("-", "_"))
    if fixed is not None:
        return f"{fixed}: remove it; {listed}"
    other = _OTHER_WAYS.get(_OTHER_WAYS_OF.get(option, option))
    if other is not None:
        return f"unknown option: {other}; {listed}"
    word = option.removeprefix("--").rpartition(".")[2]
    wanted = (*OPTIONS_MEANT.get(option, ()), *(("--every-s",) if word in _PERIODS else ()))
    meant = next((one for one in wanted if one in offered), "")
    # A word of another tool is not compared by its letters, except for a missing `s`.
    similarity = 0.9 if option in OPTIONS_MEANT else 0.7
    near = meant or nearest(option, offered, similarity_min=similarity)
    hint = f"did you mean `{near}`? " if near else ""
    return f"unknown option: {hint}{listed}"


def near_names(name: str, known: Iterable[str]) -> str:
    """Return `; similar: a, b` for an unknown name, or the first known ones if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for an error

    names = sorted(set(known))
    lowered = {one.lower(): one for one in names}
    near = [lowered[one] for one in get_close_matches(name.lower(), list(lowered), 3, cutoff=0.5)]
    inside = [one for one in names if name.lower() in one.lower() or one.lower() in name.lower()]
    similar = list(dict.fromkeys((*near, *inside)))[:3]
    if similar:
        return f"; similar: {', '.join(similar)}"
    return f"; there are: {', '.join(names[:5])}" if names else ""


def nearest(name: str, known: Iterable[str], *, similarity_min: float = 0.0) -> str:
    """Return the known name that is most similar to an unknown one.

    Empty if none has the similarity, from 0 to 1. There is at least one known name.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only for an error

    return next(iter(get_close_matches(name, sorted(known), 1, cutoff=similarity_min)), "")


if TYPE_CHECKING:
    from cyclopts import App

PREFIX: Final = "SLUICE_"
SHARED: Final = frozenset(
    {"SLUICE_CONFIG", "SLUICE_STORE", "SLUICE_FAILPOINT", "SLUICE_FAILPOINT_FOLDER"}
)
"""Variables of every command; the fail points are for tests that stop a process in a commit."""
TEST_PREFIXES: Final = ("SLUICE_TEST_", "SLUICE_BENCH_", "SLUICE_SIM_", "SLUICE_FUZZ_")
"""Prefixes of variables that the project's tests and benchmarks read."""
_OF_KUBERNETES: Final = re.compile(
    r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)", re.ASCII
)
"""Kubernetes sets these in each pod for a service whose name begins with `sluice-`."""
OF_CLIENTS: Final = frozenset({"SLUICE_URL", "SLUICE_HOST", "SLUICE_PORT", "SLUICE_TOKEN"})
"""Configurations of other clients in `docs/send` read these; an operator may export them."""
TEST_NAMES: Final = frozenset({"SLUICE_GOLDEN", "SLUICE_UPDATE_GOLDEN", "SLUICE_LIVE_BUCKET"})


def check_variables(app: "App", loaded: Iterable[str]) -> None:
    """Refuse a variable that names no command, or no option of one of the `loaded` commands.

    The error names the nearest known variable.
    """
    if not any(map(_is_checked, os.environ)):
        return
    commands = tuple(loaded)
    known = {name for command in commands for name in variables_of(app, (command,))}
    refuse_unknown_variables(known, commands)


def refuse_unknown_variables(known: Collection[str] = (), commands: tuple[str, ...] = ()) -> None:
    """Refuse a variable of one of the `commands` that is not `known`, or that names no command.

    The error names the nearest known variable.
    """
    for name in _unknown_variables(known, commands):
        for key, fixed in FIXED.items():
            if name.endswith(f"_{key.upper()}"):
                raise BadUsage(f"{fixed}: remove it, variable=`{name}`")
        others = (_prefix((one,)) for one in COMMANDS if one not in commands)
        near = nearest(name, [*known, *SHARED, *others])
        rest = "…" if near.endswith("_") else ""  # those of another command are not imported
        raise BadUsage(
            f"unknown environment variable: the nearest known name is {near}{rest},"
            f" {REFERENCE} lists all, variable=`{name}`"
        )


def _unknown_variables(known: Collection[str], commands: tuple[str, ...]) -> list[str]:
    """Return the variables that are neither `known` nor of another command than `commands`."""
    checked = tuple(_prefix((command,)) for command in commands)
    others = tuple(prefix for one in COMMANDS if (prefix := _prefix((one,))) not in checked)
    return sorted(
        name
        for name in os.environ
        if _is_checked(name)
        and name not in known
        and (name.startswith(checked) or not name.startswith(others))
        and not _OF_KUBERNETES.fullmatch(name)
    )


def variables_of(app: "App", path: tuple[str, ...]) -> Iterator[str]:
    """Yield the variable of each option of a command and of its subcommands."""
    here = app
    for name in path:
        here = here[name]
    for name in here:
        if not name.startswith("-"):
            yield from variables_of(app, (*path, name))
    if here.default_command is not None:
        for argument in here.assemble_argument_collection(parse_docstring=False):
            for name in argument.names:
                if argument.parse and name.startswith("--"):
                    yield variable_of_option(path, name)


def variable_of_option(path: tuple[str, ...], option: str) -> str:
    """Return the variable of an option `--name` of a command."""
    name = option.removeprefix("--").replace(".", "-")
    return _prefix(path) + name.upper().replace("-", "_")


def _is_checked(name: str) -> bool:
    if not name.startswith(PREFIX) or name in SHARED | OF_CLIENTS | TEST_NAMES:
        return False
    return not name.startswith(TEST_PREFIXES)


def _prefix(path: tuple[str, ...]) -> str:
    return PREFIX + "_".join(path).upper().replace("-", "_") + "_"
