"""`/v1/dead-letters`: the batches that could not be ingested."""

from pathlib import Path
from typing import Any

from support.query_lake import DAY0_NS, QueryClient, deployment, log_batch, talk
from support.spark_local import ingest_locally

from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S


def test_dead_letters_are_listed_until_they_are_ingested(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    lost = [
        log_batch(["x"], start=n, agent=f"host-{n % 2}", at_ns=DAY0_NS + n * 3600 * NS_PER_S)
        for n in range(4)
    ]

    def listed(**given: object) -> tuple[list[int], bool]:
        found: dict[str, Any] = {}

        async def story(client: QueryClient) -> None:
            url = f"{client.url}/v1/dead-letters"
            async with client.session.get(url, params={k: str(v) for k, v in given.items()}) as one:
                assert one.status == 200
                found.update(await one.json())

        talk(made, story)
        return [one["seq_start"] for one in found["dead_letters"]], found["more"]

    assert listed() == ([], False)
    made.accept(lost, blobs=False)
    made.enqueue(lost)
    ingest_locally(made.url)
    assert listed() == ([3, 2, 1, 0], False)
    assert listed(limit=2) == ([3, 2], True)
    assert listed(agent="host-1") == ([3, 1], False)
    made.put_blob(lost[3])
    made.enqueue(lost[3:])
    ingest_locally(made.url)
    assert listed() == ([2, 1, 0], False)

    async def story(client: QueryClient) -> None:
        async with client.session.get(f"{client.url}/v1/dead-letters?limit=1") as found:
            (one,) = (await found.json())["dead_letters"]
        manifest = lost[2].manifest
        assert one["frame_sha256"] == manifest.frame_sha256
        assert (one["reason"], one["kind"], one["record_count"]) == ("missing", "logs", 1)
        assert manifest.raw_blob_key in one["detail"]
        assert parse_rfc3339(one["accepted_at"]) == manifest.accepted_at_unix_ns
        for bad in ("limit=0", "limit=501", "colour=red"):
            async with client.session.get(f"{client.url}/v1/dead-letters?{bad}") as found:
                assert found.status == 400

    talk(made, story)
