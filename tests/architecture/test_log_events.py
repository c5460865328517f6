"""Log events have snake_case names, and each WARN and ERROR event is in the registry."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from deploy.events_page import PAGE, read_registry, render_page

LOG_EVENTS = read_registry()
ROOT = Path(__file__).parents[2]
LEVELS = {"warning": "WARN", "error": "ERROR", "exception": "ERROR", "critical": "ERROR"}
METHODS = {*LEVELS, "info", "debug"}


def log_calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Yield the place, component and call of each log call in the product."""
    for path in sorted(ROOT.glob("*/*sluice*/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log" | "_log"), attr=method)):
                    if method in METHODS:
                        component = path.relative_to(ROOT).parts[1].split("sluice_")[-1]
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", component, node


def level_of(call: ast.Call) -> str | None:
    return LEVELS.get(call.func.attr) if isinstance(call.func, ast.Attribute) else None


def name_of(call: ast.Call) -> str:
    match call.args:
        case [ast.Constant(value=str(name))]:
            return name
        case _:
            return ""


def test_event_names_are_literal_and_snake_case() -> None:
    """A search for an event name finds the line that logs it."""
    pattern = re.compile(r"[a-z0-9]+(_[a-z0-9]+)+")
    wrong = [place for place, _, call in log_calls() if not pattern.fullmatch(name_of(call))]
    assert wrong == []


def test_the_registry_lists_exactly_the_warnings_and_errors_that_are_logged() -> None:
    logged = {
        (component, level, name_of(call))
        for _, component, call in log_calls()
        if (level := level_of(call)) is not None
    }
    listed = {(event.component, event.level, event.name) for event in LOG_EVENTS}
    assert listed == logged


def test_the_scan_finds_log_calls() -> None:
    """An empty scan would let the other tests pass."""
    assert len(list(log_calls())) > 40


def test_loggers_have_one_name() -> None:
    """A logger under another name would escape the scan."""
    pattern = re.compile(r"^(\w+) = structlog\.get_logger", re.MULTILINE)
    names = {
        name
        for path in ROOT.glob("*/*sluice*/**/*.py")
        for name in pattern.findall(path.read_text())
    }
    assert names <= {"log", "_log"}


def test_each_event_has_a_meaning_and_an_action() -> None:
    assert [event.name for event in LOG_EVENTS if not (event.meaning and event.action)] == []
    assert list(LOG_EVENTS) == sorted(LOG_EVENTS, key=lambda event: (event.component, event.name))


def test_the_page_is_generated_from_the_registry() -> None:
    """`make docs` writes the page; an edit of the page alone is lost."""
    assert PAGE.read_text() == render_page(LOG_EVENTS)


def test_each_error_has_an_entry_for_operators() -> None:
    """An operator reads what it means, how to see it, what to do, and what is at risk."""
    errors = [event for event in LOG_EVENTS if event.level == "ERROR"]
    assert [event.name for event in errors if not (event.confirm and event.risk)] == []
    others = [event for event in LOG_EVENTS if event.level != "ERROR"]
    assert [event.name for event in others if event.confirm or event.risk] == []
    for event in errors:
        assert f"\n### {event.name}\n" in PAGE.read_text()
