"""The replacement of an object by one writer leaves one version of it."""

import asyncio
from pathlib import Path

from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import ObjectKey
from sluice_store.local import open_local_store
from sluice_store.retry import Backoff, replace_version

KEY = ObjectKey("landed/v1/journal.json")


def test_a_replaced_object_leaves_no_older_version(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_local_store(tmp_path) as store:
            for body in (b"one", b"two", b"three"):
                await replace_version(store, KEY, body, Backoff.seeded_by(SystemClock()))
            found = await store.get(KEY)
            assert found.body == b"three"

    asyncio.run(main())
    kept = [one for one in tmp_path.rglob("*") if one.is_file() and one.stat().st_size in (3, 5)]
    assert [one.read_bytes() for one in kept] == [b"three"]
