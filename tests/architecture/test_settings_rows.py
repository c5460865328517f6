"""How many options a user sees: each one is read, documented and kept for years.

`python -m deploy.reference rows` prints the figures.
"""

from deploy.reference import count_rows, render_commands

LIMITS = {
    "maintain": 30,
    "agent run": 21,
    "gateway": 25,
    "query": 14,
    "reconciler": 12,
    "console": 26,
}
ALL_MAX = 316
"""An option with one meaning in several commands is described once, and is one row."""


def test_commands_have_few_options() -> None:
    """An option is for a value that an operator can know better; others are constants."""
    rows = count_rows(render_commands())
    assert {name: rows[name] for name in LIMITS if rows[name] > LIMITS[name]} == {}
    assert sum(rows.values()) <= ALL_MAX
