"""A journal that lapses or stops: what its registration and its last object prove."""

import pytest
from support.gateway_journal import entry, journals, named, open_world, registrations
from support.memory_bucket import Fault

from sluice_gateway.journal import SUPERSEDED_S_MAX
from sluice_protocol.journals import FENCE_S
from sluice_protocol.keys import GATEWAY_PROCESSES, GATEWAYS
from sluice_web.problems import HttpRefusal


async def test_the_age_of_a_registration_counts_from_before_its_write() -> None:
    """A write that takes long may have been visible for all of that time."""
    seen = await open_world(registered=False)

    def delay(call: object) -> None:
        if str(getattr(call, "key", "")).startswith(GATEWAY_PROCESSES):
            seen.pass_s(FENCE_S + 1)

    seen.plan.seen = delay
    await seen.journal.open()
    assert seen.journal.process
    assert not seen.journal.is_current


@pytest.mark.parametrize("pause_s", [2, FENCE_S + 1])
@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.RESET_AFTER, Fault.TIMEOUT_BEFORE])
async def test_attempts_to_register_leave_one_registration(fault: Fault, pause_s: float) -> None:
    """Readers wait for the journal of each registration until it is closed or lapses."""
    seen = await open_world()
    first = seen.journal.process
    seen.pass_s(FENCE_S + 1)
    seen.plan.prefix, seen.plan.fault = GATEWAYS, fault
    for _ in range(5):
        with pytest.raises(HttpRefusal):
            await seen.journal.require_current()
        seen.pass_s(pause_s)
    seen.plan.prefix = "never"
    await seen.journal.require_current()
    found = await registrations(seen.inner)
    assert len(found) == (2 if pause_s < FENCE_S else 3)
    await seen.journal.close(landed=True)
    ends = {process: of[-1].header.closed for process, of in (await journals(seen.inner)).items()}
    assert ends == dict.fromkeys(found, True)
    assert first in ends


@pytest.mark.parametrize("landed", [False, True])
async def test_a_worker_that_stops_sends_no_200(landed: bool) -> None:
    """Also with batches left in a spool, when no closed object is written."""
    seen = await open_world()
    await seen.journal.close(landed=landed)
    with pytest.raises(HttpRefusal):
        await seen.journal.require_current()


@pytest.mark.parametrize(("age_s", "closed"), [(FENCE_S + 1, True), (SUPERSEDED_S_MAX + 1, False)])
async def test_a_stop_closes_the_journals_of_earlier_registrations(
    age_s: float, *, closed: bool
) -> None:
    """A journal older than an hour is left to a full pass, which may have replaced it already."""
    seen = await open_world()
    first = seen.journal.process
    seen.journal.note(entry(0))
    seen.pass_s(age_s)
    await seen.journal.require_current()
    second = seen.journal.process
    assert second != first
    await seen.journal.close(landed=True)
    found = await journals(seen.inner)
    assert [one.header.closed for one in found.get(first, [])] == [True] * closed
    assert found[second][-1].header.closed
    assert named(found[second]) == [0]
