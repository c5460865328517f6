"""Write `docs/events.md` from the registry of log events: `python -m deploy.events_page`."""

import tomllib
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, Literal

REGISTRY: Final = Path(__file__).parents[1] / "docs" / "events.toml"
PAGE: Final = REGISTRY.with_suffix(".md")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """One log event of the registry.

    Attributes:
        name: The event name, snake_case; the field `event` of the log line.
        level: WARN (sluice recovered or will retry) or ERROR (an operator must act).
        component: The component that logs it.
        meaning: What happened.
        action: What an operator does.
        confirm: How an operator sees that it is so; ERROR only.
        risk: What is at risk until an operator acts; ERROR only.
    """

    name: str
    level: Literal["WARN", "ERROR"]
    component: str
    meaning: str
    action: str
    confirm: str = ""
    risk: str = ""


_INTRODUCTION: Final = """\
# Log events

Every WARN and ERROR event of sluice, by component. This page is generated from
`docs/events.toml` by `make docs`.

Each log line is one JSON object on standard error. Its field `event` is the name below, `level` is
the level, and `timestamp` the time (UTC). Other fields contain details, such as `key` and `reason`.

- **WARN**: sluice recovered, or retries automatically. Investigate when the event repeats.
- **ERROR**: an operator must act. Each has an entry at the [end of this page](#errors), with its
  name as the anchor.
"""

_ERRORS: Final = """
## Errors

While an operator acts, accepted batches are safe, unless the entry states something else.
"""


def read_registry() -> tuple[LogEvent, ...]:
    """Return the events of the registry, in its order."""
    return tuple(LogEvent(**event) for event in tomllib.loads(REGISTRY.read_text())["event"])


def render_page(events: tuple[LogEvent, ...]) -> str:
    """Return the page as Markdown, one table a component."""
    parts = [_INTRODUCTION]
    for component, group in groupby(events, key=lambda event: event.component):
        parts.append(
            f"\n## {component}\n\n| event | level | meaning | action |\n|---|---|---|---|\n"
        )
        parts.extend(
            f"| `{event.name}` | {event.level} | {event.meaning} | {event.action} |\n"
            for event in group
        )
    parts.append(_ERRORS)
    parts.extend(map(_runbook_entry, (event for event in events if event.level == "ERROR")))
    return "".join(parts)


def _runbook_entry(event: LogEvent) -> str:
    return (
        f"\n### {event.name}\n\n"
        f"- **Meaning:** {event.meaning}\n- **Confirm:** {event.confirm}\n"
        f"- **Do:** {event.action}\n- **At risk:** {event.risk}\n"
    )


if __name__ == "__main__":
    PAGE.write_text(render_page(read_registry()))
