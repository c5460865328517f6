from collections.abc import Callable
from pathlib import Path

import pytest

from sluice_cli.price_files import read_prices
from sluice_cli.shell.settings import read_file
from sluice_protocol.errors import BadUsage


def read_settings(path: Path) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICE_CONFIG", str(path))
        return read_file()


@pytest.mark.parametrize("read", [read_settings, read_prices], ids=["settings", "prices"])
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"x = " + b"[" * 5_000, id="nested too deeply"),
        pytest.param(b"x = " + b"1" * 5_000, id="number too long"),
        pytest.param(b"x = \xff", id="not UTF-8"),
    ],
)
def test_a_file_that_no_parser_reads_is_named(
    tmp_path: Path, body: bytes, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(body)
    with pytest.raises(BadUsage, match=r"file\.toml"):
        read(path)
