"""One conformance check with the server's known deviation, if it has one."""

from sluice_store.checks import Nonconforming
from sluice_store.conformance import Check
from sluice_store.deviations import deviation_of
from sluice_store.port import ObjectStore


async def assert_conforms(server: str, check: Check, store: ObjectStore, place: str) -> None:
    """Run the check; where the table has a deviation, exactly that one must occur."""
    known = deviation_of(server, check.__name__)
    if known is None:
        await check(store, place)
        return
    failure: Nonconforming | None = None
    try:
        await check(store, place)
    except Nonconforming as error:
        failure = error
    if failure is None:
        assert not known.always, f"{server} deviates no longer: take the line out of the table"
        return
    assert failure.promise == known.promise
    assert known.seen in failure.seen
