"""Settings: ranges, and defaults by kind of store."""

import pytest

from sluice_protocol.errors import BadUsage
from sluice_reconciler.settings import ReconcilerOptions, ReconcilerSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("live_bytes_max", -1),
        ("lease_s", 0.0),
        ("lease_s", float("nan")),
        ("freshness_s", -1.0),
        ("freshness_s", 31.0),
        ("queues", " , "),
        ("advertise_url", "reconciler-1:8081"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: object) -> None:
    """The error names the setting."""
    with pytest.raises(BadUsage, match=name):
        ReconcilerSettings(**{name: value})


def test_freshness_only_lengthens_the_intervals() -> None:
    usual = ReconcilerSettings()
    assert (usual.read_interval_s, usual.listing_interval_s) == (0.25, 1.0)
    fresh = ReconcilerSettings(freshness_s=0.5)
    assert (fresh.read_interval_s, fresh.listing_interval_s) == (0.5, 1.0)
    slow = ReconcilerSettings(freshness_s=10)
    assert (slow.read_interval_s, slow.listing_interval_s) == (10, 10)


def test_settings_that_depend_on_the_store_get_defaults() -> None:
    """A directory gets tail scans and low concurrency; explicit settings are kept."""
    local, remote = ReconcilerOptions().on("file:///x"), ReconcilerOptions().on("s3://b/p")
    assert (local.tail_interval_s, local.concurrency) == (0.2, 4)
    assert (remote.tail_interval_s, remote.concurrency) == (0.0, 32)
    assert ReconcilerSettings(concurrency=9, tail_interval_s=0).on("file:///x").concurrency == 9
