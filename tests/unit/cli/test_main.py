"""The entry point: output that cannot be written is one line, whenever it is noticed."""

import sys
from contextlib import suppress

import pytest

from sluice_cli.main import main


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_output_on_a_full_disk_is_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = open("/dev/full", "w")  # noqa: PTH123, SIM115 - closed below
    monkeypatch.setattr(sys, "stdout", full)
    monkeypatch.setattr(sys, "argv", ["sluice", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("sluice: cannot read or write: No space left on device; free space")
    assert said.count("\n") == 1
    with suppress(OSError):
        full.close()
