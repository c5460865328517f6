"""The text of a command contains the data as it is."""

import pytest

from sluice_cli.output import emit


@pytest.mark.parametrize(
    "text", ["install sluice[query]", "[red]agent[/red]", "level :warning: ok"]
)
def test_texts_of_the_data_are_no_markup(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    emit({}, as_json=False, human=lambda console: console.print(text))
    assert capsys.readouterr().out == f"{text}\n"
