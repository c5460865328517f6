"""Above the high mark a share of keep-alive connections is closed after the response."""

import random
from pathlib import Path

from support.gateway import TestKey, frame_of, run, running

HOST = TestKey("host-1", ("host-1",))
UPLOADS = 150


def test_a_share_of_connections_is_shed_above_the_high_mark(tmp_path: Path) -> None:
    """None is closed below the mark; above it some are, and every upload is still accepted."""

    async def main() -> None:
        async with running(tmp_path, HOST) as served:
            budget = served.gateway.uploads.budget
            budget._rng = random.Random(7)
            frame = frame_of()

            async def closed() -> int:
                answers = [await served.client.upload(frame) for _ in range(UPLOADS)]
                assert {answer.status for answer in answers} == {200}
                return sum(answer.headers.get("Connection") == "close" for answer in answers)

            assert await closed() == 0
            with budget.take(int(served.gateway.settings.inflight_bytes_max * 0.64)):
                assert UPLOADS // 30 <= await closed() <= UPLOADS // 4
            assert await closed() == 0

    run(main())
