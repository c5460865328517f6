"""The status as text, and as a page: one table in plain HTML, without scripts."""

from html import escape
from typing import Final

from sluice_maintain.scheduler import WaitReason
from sluice_maintain.status import MaintenanceStatus, TaskStatus
from sluice_maintain.time_windows import describe_instant

REFRESH_S: Final = 10
_STYLE: Final = (
    "body{font:15px/1.4 system-ui,sans-serif;margin:2rem;color:#222}"
    "table{border-collapse:collapse}th,td{text-align:left;padding:.3rem .8rem;"
    "border-bottom:1px solid #ddd;vertical-align:top}.trouble{color:#a00}"
)
_HEADINGS: Final = (
    *("task", "state", "last success", "last run", "duration", "next run", "lease"),
    "problem",
)


_STATES: Final = {
    WaitReason.OFF.value: "disabled",
    WaitReason.LEASED.value: "running elsewhere",
    WaitReason.NOT_DUE.value: "not due",
    WaitReason.BACKING_OFF.value: "waiting after a failure",
    WaitReason.WINDOW.value: "waiting for its window",
    WaitReason.CONFLICT.value: "waiting for a task that changes the same data",
    WaitReason.NO_SLOT.value: "waiting for a free worker",
    "never_ran": "never ran",
}


def describe_state(state: str) -> str:
    """Return the state of a task in words."""
    return _STATES.get(state, state)


def render_text(status: MaintenanceStatus, problem: str = "") -> str:
    """Return the state of every task as text, one line each, and the problem below it."""
    lines = [f"not current: {problem}"] if problem else []
    for one in status.tasks:
        lines.append(_text_line(one))
        if one.trouble:
            lines.append(f"{'':11}{one.trouble}")
    return "\n".join(lines) + "\n"


def _text_line(one: TaskStatus) -> str:
    parts = [f"{one.task:10} {describe_state(one.state)}"]
    if one.last_outcome:
        parts.append(f"last run {one.last_outcome} in {describe_duration(one.last_duration_s)}")
    if one.last_success_unix_ns:
        parts.append(f"last success {instant_text(one.last_success_unix_ns)}")
    if one.next_run_unix_ns and not one.lease_owner:
        parts.append(f"next {instant_text(one.next_run_unix_ns)}")
    if one.lease_owner:
        parts.append(f"by {one.lease_owner}")
    return ", ".join(parts)


def render_page(status: MaintenanceStatus, problem: str) -> str:
    """Return the page; `problem` is why the state is not current, or empty."""
    head = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
    rows = "".join(_row(one) for one in status.tasks)
    alert = f'<p class="trouble">not current: {escape(problem)}</p>' if problem else ""
    parts = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="refresh" content="{REFRESH_S}">',
        f"<title>sluice maintain</title><style>{_STYLE}</style></head>",
        "<body><h1>sluice maintain</h1>",
        f"<p>{escape(status.owner)}, {describe_instant(status.checked_at_unix_ns)}</p>",
        alert,
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></body></html>",
    )
    return "\n".join(parts)


def _row(one: TaskStatus) -> str:
    cells = (
        *(
            one.task,
            describe_state(one.state),
            instant_text(one.last_success_unix_ns),
            one.last_outcome,
        ),
        *(describe_duration(one.last_duration_s), instant_text(one.next_run_unix_ns)),
        *(one.lease_owner, one.trouble),
    )
    inner = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr class="trouble">{inner}</tr>' if one.trouble else f"<tr>{inner}</tr>"


def instant_text(at_ns: int | None) -> str:
    """Return an instant, or an empty text for none."""
    return describe_instant(at_ns) if at_ns else ""


def describe_duration(seconds: float | None) -> str:
    """Return a duration, such as `1.2 s`, `3 min` or `2.5 h`; empty for None."""
    if seconds is None:
        return ""
    if seconds < 100:  # noqa: PLR2004 - seconds are readable up to here
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"  # noqa: PLR2004 - as above
