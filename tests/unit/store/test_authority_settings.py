"""Settings of a deployment that exist already."""

import pytest
from support.memory_bucket import open_memory_store

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage
from sluice_store.authority import create_authority


async def test_other_settings_are_refused_with_those_that_differ() -> None:
    store, _ = open_memory_store()

    async def create(**chosen: int) -> Authority:
        return await create_authority(store, Authority(authority_id="A" * 26, **chosen))

    made = await create(lanes=8)
    assert await create(lanes=8) == made
    with pytest.raises(BadUsage, match="omit these options") as refused:
        await create(lanes=4, margin_s=7200)
    assert str(refused.value).endswith("or use another store, margin_s=`3600`, lanes=`8`")
