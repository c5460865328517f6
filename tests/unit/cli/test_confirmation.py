"""A command that cannot be taken back is confirmed, at the terminal or by `--yes`."""

import io

import pytest

from sluice_cli.shell.operator import is_confirmed
from sluice_protocol.errors import BadUsage


class Terminal(io.StringIO):
    """Standard input of a terminal with this text typed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "confirmed"), [("yes\n", True), ("y\n", False), ("", False)])
def test_only_the_whole_word_confirms(
    typed: str, confirmed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    assert is_confirmed("block it?", yes=False, refusal="use --yes") is confirmed
    assert capsys.readouterr() == ("", "block it? [yes/no] ")


def test_yes_reads_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    assert is_confirmed("block it?", yes=True, refusal="use --yes")
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_yes_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    with pytest.raises(BadUsage, match="use --yes"):
        is_confirmed("block it?", yes=False, refusal="use --yes")
