"""Files with list prices, for `sluice cost` and the console."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from sluice_protocol.errors import BadUsage

if TYPE_CHECKING:
    from sluice_protocol.prices import PriceTable


def read_prices(path: Path | None) -> "PriceTable":
    """Return the prices of a TOML file; what it does not name keeps its default."""
    from sluice_protocol.prices import S3_US_EAST_1, parse_prices  # noqa: PLC0415 - quick help

    if path is None:
        return S3_US_EAST_1
    try:
        return parse_prices(tomllib.loads(path.read_text()))
    except OSError as error:
        raise BadUsage(
            f"cannot read the prices: {error.strerror}; correct `--prices`, path=`{path}`"
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadUsage(f"cannot read the prices: {error}, path=`{path}`") from error
