"""Every service continues within seconds after an S3 server refused reads, writes or both."""

from pathlib import Path

import pytest
from support.local_deployment import run_sluice
from support.outage_fleet import READS, Outage, fleet, go_through_outage, outage_proxy
from support.repetitions import times
from support.store_versitygw import CREDENTIALS, binary, versitygw

WRITES = frozenset({"PUT", "DELETE", "POST"})


@pytest.mark.long
@pytest.mark.s3
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not binary().exists(), reason="the S3 server is missing: run `make test-s3`")
@pytest.mark.parametrize("fails", [READS, WRITES, READS | WRITES], ids=["reads", "writes", "all"])
def test_an_s3_server_that_refuses(tmp_path: Path, fails: frozenset[str]) -> None:
    with versitygw(tmp_path / "server") as server, outage_proxy(server.endpoint) as proxy:
        (tmp_path / "server" / "data" / "bucket").mkdir()
        folder = tmp_path / "up"
        folder.mkdir()
        url = f"s3://bucket/?endpoint={proxy.url}&region=us-east-1"
        assert run_sluice(folder, "init", "--store", url, **CREDENTIALS).returncode == 0
        examined = run_sluice(folder, "doctor", "--store", url, **CREDENTIALS)
        assert "good for acceptance" in examined.stdout, examined.stderr

        def set_fails(methods: frozenset[str]) -> None:
            proxy.fails = methods

        outage = Outage(begin=lambda: set_fails(fails), end=lambda: set_fails(frozenset()))
        with fleet(folder, "--store", url) as one:
            for seconds in (3, times(30)):
                go_through_outage(one, outage, seconds)
