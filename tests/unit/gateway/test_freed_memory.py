"""When the memory that decoders have freed is returned: after several bodies, or a large one."""

import pytest

from sluice_gateway.doors import service
from sluice_gateway.doors.service import RETURNED_BYTES, FreedMemory


@pytest.mark.parametrize(
    ("sizes", "returns"),
    [
        ([RETURNED_BYTES - 1], 0),
        ([RETURNED_BYTES - 1, 1], 1),
        ([RETURNED_BYTES // 4] * 9, 2),
        ([5 * RETURNED_BYTES, RETURNED_BYTES // 2], 1),
    ],
)
def test_memory_is_returned_once_for_several_bodies(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], returns: int
) -> None:
    made: list[None] = []
    monkeypatch.setattr(service, "_return_freed_memory", lambda: made.append(None))
    freed = FreedMemory()
    for size in sizes:
        freed.decoded(size)
    assert len(made) == returns
