"""`verify.compare_faults`: the pages contain its results, and sluice ships every line once."""

import asyncio
import json

import pytest
from verify.compare_faults import (
    FAULTS,
    FIRST_PAGE,
    PAGE,
    RESULTS,
    compare,
    merged,
    section,
    table,
)
from verify.shippers import SHIPPERS


def test_the_pages_contain_the_stored_results() -> None:
    results = json.loads(RESULTS.read_text())
    assert list(results["faults"]) == list(FAULTS)
    assert list(results["shippers"]) == [one for one in SHIPPERS if one in results["shippers"]]
    assert section(results) in PAGE.read_text()
    assert table(results) in FIRST_PAGE.read_text()


def test_a_run_of_one_shipper_replaces_only_its_column() -> None:
    stored = json.loads(RESULTS.read_text())
    name = "syslog-ng"
    new = {
        **stored,
        "shippers": {name: stored["shippers"]["sluice"] | {"revision": "new"}},
        "faults": {fault: {name: {"sent": 7, "lost": 1, "doubled": 2}} for fault in FAULTS},
    }
    found = merged(stored, new)
    assert list(found["shippers"]) == list(stored["shippers"])
    assert found["shippers"][name]["revision"] == "new"
    assert found["faults"]["none"][name] == {"sent": 7, "lost": 1, "doubled": 2}
    for other in stored["shippers"].keys() - {name}:
        assert found["shippers"][other] == stored["shippers"][other]
        for fault in FAULTS:
            assert found["faults"][fault].get(other) == stored["faults"][fault].get(other)


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
