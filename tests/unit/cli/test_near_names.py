"""Similar names for one that no record has."""

import pytest

from sluice_cli.shell.output import print_columns
from sluice_cli.shell.settings import near_names


@pytest.mark.parametrize(
    ("name", "known", "text"),
    [
        ("demo_request", ["demo_requests", "cpu"], "; similar: demo_requests"),
        ("CPU", ["cpu.load", "memory"], "; similar: cpu.load"),
        ("zzz", ["b", "a"], "; there are: a, b"),
        ("zzz", [], ""),
    ],
)
def test_similar_names_are_offered_before_all(name: str, known: list[str], text: str) -> None:
    assert near_names(name, known) == text


def test_one_long_value_does_not_widen_its_column() -> None:
    class Lines(list[str]):
        def print(self, line: str) -> None:
            self.append(line)

    lines = Lines()
    print_columns(lines, [("option", "value", "from"), ("a", "x" * 467, "d"), ("b", "y", "d")])
    assert lines[0] == "option  value  from"
    assert lines[2] == "b       y      d"
