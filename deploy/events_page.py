"""Write `docs/events.md` from the registry of log events: `python -m deploy.events_page`."""

from itertools import groupby
from pathlib import Path
from typing import Final

from sluice_protocol.log_events import LOG_EVENTS, LogEvent

PAGE: Final = Path(__file__).parents[1] / "docs" / "events.md"

_INTRODUCTION: Final = """\
# Log events

Every WARN and ERROR event of sluice, by component. This page is generated from
`core/sluice_protocol/log_events.py` by `make docs`.

Each log line is one JSON object on standard error. Its field `event` is the name below, `level` is
the level, and `timestamp` the time (UTC). Other fields contain details, such as `key` and `reason`.

- **WARN**: sluice recovered, or retries automatically. Investigate when the event repeats.
- **ERROR**: an operator must act.
"""


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
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render_page(LOG_EVENTS))
