"""Each client with its configuration in `docs/send`: gateways die, the store is unreachable."""

from collections.abc import Iterator

import pytest
from support.client_followers import FOLLOWERS
from support.client_libraries import LIBRARY_CLIENTS
from support.client_metrics import METRIC_CLIENTS
from support.client_programs import ClientCase
from support.client_trial import (
    Fault,
    Outcome,
    faulty_fleet,
    outcomes,
    record_count,
    run_trials,
    started,
)
from support.store_versitygw import CREDENTIALS

CASES = (*FOLLOWERS, *METRIC_CLIENTS, *LIBRARY_CLIENTS)
FORMS: dict[str, tuple[tuple[str, ...], tuple[Fault, ...]]] = {
    "own-batches": ((), ("lose", "kill", "outage", "kill", "none")),
    "combined": (("--door-own-frame-bytes", "262144"), ("lose", "kill", "outage", "kill")),
}
"""The options of the gateways, and the faults: one gateway of three remains."""
pytestmark = [pytest.mark.clients, pytest.mark.timeout(3_600)]


@pytest.fixture(scope="module", params=FORMS.values(), ids=FORMS)
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Outcome]]:
    """Two of three gateways are killed, responses are lost, the store is unreachable for 20 s."""
    folder = tmp_path_factory.mktemp("clients")
    cases = [
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.originalname == "test_every_record_arrives"
        and item.callspec.params["results"] == request.param
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**CREDENTIALS, "AWS_REGION": "us-east-1"}.items():
            patch.setenv(name, value)
        flags, faults = request.param
        with faulty_fleet(folder, flags) as (served, way):
            with started(cases, served, folder, record_count(len(faults))) as trials:
                run_trials(trials, served, way, faults)
            yield outcomes(trials, served.store_url)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_record_arrives(case: ClientCase, results: dict[str, Outcome]) -> None:
    """Nothing is lost, and only a client that sends other batches than before doubles records.

    A search finds the records.
    """
    found = results[case.name]
    print(f"client={case.name} {found}")
    assert found.searched
    if case.retries:
        assert found.lost <= case.lost_max
        assert found.errors == []
        assert found.unused == 0
    if case.keeps_identity:
        assert found.doubled == 0
