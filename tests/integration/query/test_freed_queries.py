"""A query that fails is freed by its reference count, with everything that it has read.

The garbage collector runs after thousands of allocations, so each failed query that is part of a
reference cycle would keep its pending batches, which may be hundreds of megabytes.
"""

import asyncio
import gc
from pathlib import Path

import pytest
from support.query_lake import QueryClient, deployment, log_batch, many_lines, talk

from sluice_query.search import SearchRead
from sluice_query.settings import QuerySettings


@pytest.mark.parametrize("path", ["/v1/query", "/v1/histogram"])
def test_a_query_above_the_memory_limit_is_freed(tmp_path: Path, path: str) -> None:
    made = deployment(tmp_path)
    made.deliver([log_batch(many_lines(5_000))])
    by = {"by": "body"} if path == "/v1/histogram" else {"limit": 100_000}

    async def story(client: QueryClient) -> None:
        await client.get(path, **by)  # imports the modules of the view
        gc.freeze()  # the next collection reads only what is allocated from here on
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                status, body = await client.get(path, **by)
                assert (status, body["code"]) == (503, "overloaded")
                assert "memory limit: narrow the range" in body["detail"]
            await asyncio.sleep(0.1)
            gc.collect()
            kept = [one for one in gc.garbage if isinstance(one, SearchRead)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.unfreeze()
        assert kept == []

    talk(made, story, QuerySettings(threads=1, memory_bytes_max=2_000_000))
