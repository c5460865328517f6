"""Write the generated pages, `docs/reference/` and `docs/fields.md`: `python -m deploy.reference`.

The commands and their settings, the HTTP interfaces, the metrics, the tables of the lake, the
stored records and the error codes are read from the code, and so is the table of bytes in
`docs/queue.md`. A test compares the pages with what the code renders now.
"""

import ast
import importlib
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cyclopts import App, Argument
from prometheus_client.metrics import MetricWrapperBase

from deploy.errors_page import render_errors
from deploy.fields_page import render_fields
from deploy.page_sections import markdown_table, split_section
from deploy.records_page import render_records
from sluice_agent.metrics import PREFIX, AgentMetrics
from sluice_agent.settings import default_agent_id
from sluice_cli.deployment.redaction import is_secret_option
from sluice_cli.shell.application import build_application
from sluice_cli.shell.commands import COMMANDS
from sluice_cli.shell.options import STORE_DEFAULT
from sluice_cli.shell.settings import variable_of_option
from sluice_console.metrics import ConsoleMetrics
from sluice_gateway.metrics import Durations, GatewayMetrics
from sluice_gc.cycle import GcMetrics
from sluice_gc.settings import default_key_file
from sluice_lake.tables import TABLES
from sluice_maintain.metrics import MaintenanceMetrics
from sluice_query.http.runner import QueryMetrics
from sluice_query.settings import QuerySettings
from sluice_queue.register import HEADER
from sluice_queue.register_client import QueueMetrics
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_store.url import URL_FORMS

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs" / "reference"
_COMMANDS_HEAD: Final = """\
# Commands and settings

This page is generated from the code by `make docs`.

Each option is also a setting: in `sluice.toml` as a key of the table of its command, and in the
environment as the variable below. A flag has precedence over the environment, and the environment
over the file. `sluice config show` prints the values in use. Every command accepts `--help`.

The line "also" of a command names options that mean the same in several commands. They are
described once:

"""
_HTTP_HEAD: Final = """\
# HTTP interfaces

This page is generated from the code by `make docs`.

Each service describes its interface in `/openapi.json`. Errors are problem documents (RFC 9457).
The requests of other clients are described in [doors](../doors.md), the parameters of queries in
the [query API](../query-api.md).
"""
_METRICS_HEAD: Final = """\
# Metrics

This page is generated from the code by `make docs`.

Every service serves `/metrics` in the text format of Prometheus. `deploy/monitoring` has alert
rules and a dashboard. Counters have the suffix `_total`, histograms `_bucket`, `_sum` and `_count`.
"""
_TABLES_HEAD: Final = """\
# Tables of the lake

This page is generated from the code by `make docs`.

Delta tables under `lake/v1/` of the store ([Spark](../spark.md#tables)). Files record the minimum
and the maximum of columns with *skip*, so that readers can skip files.
"""
_OPTION_COLUMNS: Final = ("option", "variable", "default", "meaning")
_OptionRow = tuple[str, str, str]
"""The option, its default and its meaning."""
_SERVICES: Final = {
    "gateway": ROOT / "gateway" / "sluice_gateway",
    "reconciler": ROOT / "reconciler" / "sluice_reconciler",
    "query": ROOT / "query" / "sluice_query",
    "console": ROOT / "console" / "sluice_console",
    "maintain": ROOT / "maintain" / "sluice_maintain",
    "agent": ROOT / "agent" / "sluice_agent",
    "every service": ROOT / "core" / "sluice_web",
}
_MAKERS: Final = ("Endpoint", "read_endpoint")
"""What is called with the path, the method and the summary of a route."""
_MACHINE_DEFAULTS: Final[dict[str, tuple[Callable[[], object], str]]] = {
    "agent-id": (default_agent_id, "the host's name"),
    "key-file": (default_key_file, "`~/.local/state/sluice/auditor.pem`"),
    "threads": (lambda: QuerySettings().threads, "the number of processors"),
}
"""Options whose default depends on the machine, how to compute it, and what the page shows."""
_METRICS: Final[dict[str, Callable[[], object]]] = {
    "gateway": GatewayMetrics,
    "reconciler": ReconcilerMetrics,
    "queue": QueueMetrics,
    "query": QueryMetrics,
    "console": ConsoleMetrics,
    "maintain": MaintenanceMetrics,
    "gc": GcMetrics,
    "agent": AgentMetrics,
}


# -- commands and settings ----------------------------------------------------------------


def render_commands() -> str:
    """Return the page of all commands, with their options, variables and defaults."""
    root = build_application()
    commands = [found for name in COMMANDS for found in _commands_of(root, (name,))]
    rows = {path: _option_rows(app, path) for path, app in commands}
    uses = Counter(row for found in rows.values() for row in found.values())
    shared: dict[str, _OptionRow] = {}
    for row, number in uses.most_common():
        if number > 1:
            shared.setdefault(row[0], row)  # one meaning for each name, the most frequent one
    described = (_shared_row(shared[option]) for option in sorted(shared))
    parts = [_COMMANDS_HEAD + markdown_table(_OPTION_COLUMNS, described)]
    parts.extend(_command_section(app, path, rows[path], shared) for path, app in commands)
    return "\n".join(parts)


def _commands_of(root: App, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], App]]:
    """Yield a command, if it is one, and its subcommands."""
    here = root
    for name in path:
        here = here[name]
    if here.default_command is not None:
        yield path, here
    for name in sorted(one for one in here if not one.startswith("-")):
        yield from _commands_of(root, (*path, name))


def _arguments(app: App) -> list[Argument]:
    found = app.assemble_argument_collection(parse_docstring=True)
    return [one for one in found if one.parse and not one.children]


def _option_rows(app: App, path: tuple[str, ...]) -> dict[str, _OptionRow]:
    """Return the option, default and meaning of each option, by its variable."""
    return {
        variable_of_option(path, one.names[0]): (
            f"`{one.names[0]}`",
            f"`{STORE_DEFAULT}`" if one.names[0] == "--store" else _default(one),
            f"The store: {URL_FORMS}." if one.names[0] == "--store" else _meaning(one),
        )
        for one in _arguments(app)
        if one.names[0].startswith("--")
    }


def _shared_row(row: _OptionRow) -> tuple[str, ...]:
    """Return the row of an option of several commands, with the form of its variable."""
    option, default, meaning = row
    name = option.strip("`-").upper().replace("-", "_")
    variable = f"SLUICE_{name}" if name == "STORE" else f"SLUICE_<COMMAND>_{name}"
    return option, f"`{variable}`", default, meaning


def _command_section(
    app: App, path: tuple[str, ...], rows: dict[str, _OptionRow], shared: dict[str, _OptionRow]
) -> str:
    title = f"## `sluice {' '.join(path)}`\n\n"
    summary = (app.default_command.__doc__ or "").split("\n\n")[0]
    places = [one.names[0] for one in _arguments(app) if not one.names[0].startswith("-")]
    usage = f"Arguments: {', '.join(f'`{one}`' for one in places)}.\n\n" if places else ""
    also = [row[0] for row in rows.values() if row == shared.get(row[0])]
    usage += f"Also: {', '.join(also)}.\n\n" if also else ""
    own = [
        (option, f"`{variable}`", default, meaning)
        for variable, (option, default, meaning) in rows.items()
        if option not in also
    ]
    table = markdown_table(_OPTION_COLUMNS, iter(own)) if own else ""
    return f"{title}{' '.join(summary.split())}\n\n{usage}{table}".rstrip() + "\n"


def _default(argument: Argument) -> str:
    if argument.required:
        return "required"
    default = argument.field_info.default
    if default in (argument.field_info.empty, None, "", (), {}) or is_secret_option(
        argument.names[0]
    ):
        return ""
    option = argument.names[0].rpartition(".")[2].removeprefix("--")
    if option in _MACHINE_DEFAULTS:
        compute, shown = _MACHINE_DEFAULTS[option]
        if default == compute():
            return shown
    if isinstance(default, tuple):
        return " ".join(f"`{one}`" for one in default)
    return f"`{default}`"


def _meaning(argument: Argument) -> str:
    return argument.parameter.help or ""


def count_rows(page: str) -> dict[str, int]:
    """Return the number of options by command, from the page of all commands."""
    rows: dict[str, int] = {}
    command = ""
    for line in page.splitlines():
        if line.startswith("# "):
            command = "several commands"
        elif line.startswith("## "):
            command = line.removeprefix("## `sluice ").removesuffix("`")
        elif line.startswith("| `--"):
            rows[command] = rows.get(command, 0) + 1
    return rows


# -- HTTP --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Route:
    """One method of one path, as an `Endpoint` in the code names it."""

    path: str
    method: str
    summary: str


def render_http() -> str:
    """Return the page of the HTTP interfaces, by service."""
    parts = [_HTTP_HEAD]
    for service in _SERVICES:
        found = routes_of(service)
        if found:
            rows = ((f"`{one.method} {one.path}`", one.summary) for one in found)
            parts.append(f"## {service}\n\n{markdown_table(('request', 'result'), rows)}")
    return "\n".join(parts)


def routes_of(service: str) -> list[Route]:
    """Return the routes of a service, sorted."""
    paths = sorted(_SERVICES[service].rglob("*.py"))
    return sorted({route for path in paths for route in routes_in(path)})


def routes_in(path: Path) -> Iterator[Route]:
    """Yield the routes of a module: calls of `Endpoint`, or of a function that passes them on."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        found = {one.arg: _constant(one.value, path) for one in node.keywords if one.arg}
        route = found.get("path")
        if isinstance(node.func, ast.Name) and node.func.id in _MAKERS and route:
            yield Route(
                path=route, method=found.get("method") or "GET", summary=found.get("summary") or ""
            )
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "_endpoint":
            # A method that makes similar endpoints: the path is first, and the summary is last.
            texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
            yield Route(path=str(texts[0]), method="GET", summary=str(texts[-1]))


def _constant(node: ast.expr, path: Path) -> str | None:
    """Return the text of an expression: a literal, or a name of the module."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        parts = path.relative_to(ROOT).with_suffix("").parts[1:]
        value = getattr(importlib.import_module(".".join(parts)), node.id, None)
        return value if isinstance(value, str) else None
    return None


# -- metrics -----------------------------------------------------------------------------


def render_metrics() -> str:
    """Return the page of the metrics, by component."""
    parts = [_METRICS_HEAD]
    for component, make in _METRICS.items():
        rows = sorted(set(_metric_rows(make())))
        table = markdown_table(("name", "type", "labels", "meaning"), iter(rows))
        parts.append(f"## {component}\n\n{table}")
    return "\n".join(parts)


def _metric_rows(metrics: object) -> Iterator[tuple[str, str, str, str]]:
    if isinstance(metrics, AgentMetrics):
        # An agent imports the Prometheus client only to serve its metrics.
        for own in metrics.listed:
            kind = "counter" if own.is_counter else "gauge"
            yield f"`{PREFIX}{own.name}`", kind, _labels(own.labels_used), f"{own.meaning}."
        return
    for value in vars(metrics).values():
        for one in value.values() if isinstance(value, dict) else (value,):
            if isinstance(one, MetricWrapperBase | Durations):
                (family,) = one.describe()
                labels: Any = (
                    one.labels_used if isinstance(one, Durations) else one._labelnames  # noqa: SLF001 - the library shows labels of samples only
                )
                yield f"`{family.name}`", family.type, _labels(labels), family.documentation


def _labels(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# -- tables ------------------------------------------------------------------------------


def render_tables() -> str:
    """Return the page of the Delta tables and their columns."""
    parts = [_TABLES_HEAD]
    for one in TABLES:
        rows = (
            (
                f"`{column.name}`",
                column.type.value,
                "skip" if column.skippable else "",
                column.meaning,
            )
            for column in one.columns
        )
        shown = markdown_table(("column", "type", "statistics", "meaning"), rows)
        parts.append(f"## `{one.name}`\n\nPartitioned by `{one.partition_column}`.\n\n{shown}")
    return "\n".join(parts)


QUEUE_PAGE: Final = ROOT / "docs" / "queue.md"
REGISTER_MARKS: Final = ("<!-- register: begin -->", "<!-- register: end -->")


def render_register() -> str:
    """Return the table of the bytes of a lane's register, as `docs/queue.md` shows it."""
    sizes = [struct.calcsize(f"<{one.code}") for one in HEADER]
    rows = [
        (str(sum(sizes[:index])), str(sizes[index]), one.name, one.meaning)
        for index, one in enumerate(HEADER)
    ]
    rows += [
        (
            str(sum(sizes)),
            "32 each",
            "writers, latest first",
            "producer id 16, write counter 8, first sequence of its last write 8",
        ),
        (
            "…",
            "24 each",
            "segments, oldest first",
            "first sequence 8, last sequence 8, size of the object 8",
        ),
        ("…", "…", "entries, oldest first", "the body ends exactly after them"),
    ]
    return f"\n{markdown_table(('offset', 'bytes', 'field', 'meaning'), iter(rows))}"


PAGES: Final[dict[str, Callable[[], str]]] = {
    "commands.md": render_commands,
    "errors.md": render_errors,
    "../fields.md": render_fields,
    "http.md": render_http,
    "metrics.md": render_metrics,
    "records.md": render_records,
    "tables.md": render_tables,
}


def main() -> None:
    """Write every page, or with the word `rows` print how many options each command has."""
    if sys.argv[1:] == ["rows"]:
        rows = count_rows(render_commands())
        for command in sorted(rows, key=lambda one: -rows[one]):
            sys.stdout.write(f"{rows[command]:4} {command}\n")
        sys.stdout.write(f"{sum(rows.values()):4} in all\n")
        return
    FOLDER.mkdir(exist_ok=True)
    for name, render in PAGES.items():
        (FOLDER / name).write_text(render(), encoding="utf-8")
    before, _, after = split_section(QUEUE_PAGE.read_text(encoding="utf-8"), *REGISTER_MARKS)
    QUEUE_PAGE.write_text(before + render_register() + after, encoding="utf-8")


if __name__ == "__main__":
    main()
