"""`verify.compare_faults`: the pages contain its results, and sluice ships every line once."""

import asyncio
import json

import pytest
from verify.compare_faults import FAULTS, FIRST_PAGE, PAGE, RESULTS, compare, section, table
from verify.shippers import SHIPPERS


def test_the_pages_contain_the_stored_results() -> None:
    results = json.loads(RESULTS.read_text())
    assert list(results["faults"]) == list(FAULTS)
    assert list(results["shippers"]) == list(SHIPPERS)
    assert section(results) in PAGE.read_text()
    assert table(results) in FIRST_PAGE.read_text()


@pytest.mark.long
@pytest.mark.s3
@pytest.mark.timeout(900)
def test_sluice_stores_every_line_once() -> None:
    faults = ["response_lost", "reader_killed_in_outage", "disk_full_in_outage", "other_instance"]
    results = asyncio.run(compare(["sluice"], faults, seed=1, outage_s=10))
    for fault in faults:
        found = results["faults"][fault]["sluice"]
        assert found["firings"], fault
        assert (found["lost"], found["doubled"]) == (0, 0), (fault, found)
