"""Settings of queries and of their service: ranges."""

import pytest

from sluice_protocol.errors import BadUsage
from sluice_query.settings import QuerySettings, ServeSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_bytes_max", 0),
        ("threads", 0),
        ("tail_bytes_max", -1),
        ("time_s_max", 0.0),
        ("time_s_max", float("nan")),
    ],
)
def test_bounds_of_a_query_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(BadUsage, match=name):
        QuerySettings(**{name: value})


def test_a_duration_of_zero_is_refused() -> None:
    with pytest.raises(BadUsage, match="download_s_max"):
        ServeSettings(download_s_max=0.0)
