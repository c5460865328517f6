"""The diagrams of the state machines are current, and agree with the code."""

import re
from dataclasses import replace

import pytest
from deploy.page_sections import split_section
from deploy.state_machines import (
    DOCS,
    LANE,
    LANE_VERDICTS,
    MACHINES,
    Machine,
    differences,
    marks,
    render,
)

from sluice_protocol.errors import BadUsage

EACH = pytest.mark.parametrize("machine", MACHINES, ids=[one.name for one in MACHINES])


def explored(machine: Machine) -> Machine:
    """Return the machine with its steps, so that the code is explored once."""
    steps = machine.explore()
    return replace(machine, explore=lambda: steps)


@EACH
def test_each_diagram_is_current(machine: Machine) -> None:
    page = (DOCS / machine.page).read_text(encoding="utf-8")
    _, shown, _ = split_section(page, *marks(machine))
    assert shown == render(machine), "run `make docs`"


def test_each_diagram_of_a_page_is_generated() -> None:
    pages = "".join(one.read_text(encoding="utf-8") for one in DOCS.glob("*.md"))
    assert pages.count("```mermaid") == len(MACHINES)


@EACH
def test_a_diagram_has_no_character_that_ends_its_words(machine: Machine) -> None:
    for line in render(machine).splitlines()[3:-1]:
        assert re.fullmatch(
            r'    (state "[^";:#]+" as \w+|state \w+ <<choice>>|\w+ --> \w+ : [^";:#]+)', line
        ), line


@EACH
def test_a_wrong_target_is_found(machine: Machine) -> None:
    """Every arrow is bent to every other state; a choice is several steps."""
    known = explored(machine)
    for at, (source, target, words, events) in enumerate(machine.arrows):
        for state in machine.states.keys() - {target}:
            bent = (source, state, words, events)
            arrows = (*machine.arrows[:at], bent, *machine.arrows[at + 1 :])
            assert differences(replace(known, arrows=arrows)), bent


@EACH
def test_an_invented_arrow_is_found(machine: Machine) -> None:
    known = explored(machine)
    events = set().union(*(one[3] for one in machine.arrows))
    planted = 0
    for source in machine.states:
        for event in events:
            for target in machine.states:
                if (source, event, target) not in known.explore():
                    added = (source, target, "words", frozenset({event}))
                    assert differences(replace(known, arrows=(*machine.arrows, added))), added
                    planted += 1
    assert planted > len(machine.arrows)


def test_a_diagram_that_differs_is_not_rendered() -> None:
    with pytest.raises(BadUsage, match="not drawn"):
        render(replace(LANE, arrows=LANE.arrows[1:]))


def test_the_lane_is_explored_with_every_verdict() -> None:
    assert {(source, event) for source, event, _ in LANE.explore()} >= LANE_VERDICTS
