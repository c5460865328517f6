"""The text of a command contains the data as it is."""

import pytest

from sluice_cli.shell.output import emit, print_columns


@pytest.mark.parametrize(
    "text", ["sluice-gateway[query]", "[red]agent[/red]", "level :warning: ok"]
)
def test_texts_of_the_data_are_no_markup(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    emit({}, as_json=False, human=lambda console: console.print(text))
    assert capsys.readouterr().out == f"{text}\n"


def test_columns_are_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    long = "a" * 300
    rows = [("state", "id"), ("open", long), ("[red]x", "b")]
    emit({}, as_json=False, human=lambda console: print_columns(console, rows))
    assert capsys.readouterr().out.splitlines() == [
        "state   id",
        f"open    {long}",
        "[red]x  b",
    ]
