import pytest

from sluice_web.conflicts import ConflictAccess
from sluice_web.problems import HttpRefusal


def test_a_sender_sees_conflicts_of_its_agents_only() -> None:
    access = ConflictAccess(principal="host-1", agents=frozenset({"host-1"}), may_resolve=False)
    access.check_agent("host-1")
    with pytest.raises(HttpRefusal):
        access.check_agent("host-2")


def test_an_operator_sees_all_conflicts() -> None:
    ConflictAccess(principal="ops", agents=None, may_resolve=True).check_agent("host-2")
