"""Ids of the machine are ULIDs as the package `ulid` reads them."""

import time

from ulid import ULID

from sluice_protocol.system_clock import SystemIds


def test_an_id_has_the_time_and_eighty_random_bits() -> None:
    before_ms = time.time_ns() // 1_000_000
    made = [SystemIds().ulid() for _ in range(100)]
    after_ms = time.time_ns() // 1_000_000
    for one in made:
        read = ULID.from_str(one)
        assert str(read) == one
        assert before_ms <= read.milliseconds <= after_ms
    assert len({one[10:] for one in made}) == len(made)
    assert {len(one) for one in made} == {26}
