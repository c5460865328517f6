"""How many options a user sees: each one is read, documented and kept for years.

`python -m deploy.reference rows` prints the figures.
"""

from deploy.reference import count_rows, render_commands

LIMITS = {
    "maintain": 33,
    "agent run": 32,
    "gateway": 25,
    "query": 20,
    "reconciler": 17,
    "console": 27,
}
ALL_MAX = 400


def test_commands_have_few_options() -> None:
    """An option is for a value that an operator can know better; others are constants."""
    rows = count_rows(render_commands())
    assert {name: rows[name] for name in LIMITS if rows[name] > LIMITS[name]} == {}
    assert sum(rows.values()) <= ALL_MAX
