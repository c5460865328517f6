"""What a picture shows, and the comparison of it with the code."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["start", "action", "choice", "good", "bad", "store"]
Step = tuple[str, str, str]
"""A state, what happened in it, and the next state, as the code decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnState:
    """One box.

    Attributes:
        name: The name in steps.
        title: The text.
        kind: The meaning, which selects the colour. A `choice` is not a state of the code: the
            steps into it continue with one of the steps out of it.
        note: A second text, smaller.
    """

    name: str
    title: str
    kind: Kind
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnEdge:
    """One arrow.

    Attributes:
        source: The name of a state.
        target: The name of a state.
        label: The text.
        events: What the code calls the events that it stands for; empty out of a choice.
    """

    source: str
    target: str
    label: str
    events: frozenset[str] = frozenset()


def arrow(source: str, target: str, label: str, *events: str) -> DrawnEdge:
    """Return an arrow with its events."""
    return DrawnEdge(source=source, target=target, label=label, events=frozenset(events))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One picture.

    Attributes:
        name: The name of its file, without the suffix.
        title: One line.
        summary: What it shows, for readers who do not see it.
        states: The boxes, from top to bottom.
        edges: The arrows, in the order of their sources.
        explore: Returns the steps that the code decides.
        is_complete: Whether every step of the code is drawn.
    """

    name: str
    title: str
    summary: str
    states: tuple[DrawnState, ...]
    edges: tuple[DrawnEdge, ...]
    explore: Callable[[], frozenset[Step]]
    is_complete: bool = True

    def leaving(self, state: str) -> tuple[DrawnEdge, ...]:
        """Return the arrows out of a state."""
        return tuple(one for one in self.edges if one.source == state)


def differences(drawing: Drawing) -> list[str]:
    """Return how a picture and the code differ; empty if they agree."""
    names = {one.name for one in drawing.states}
    unknown = [
        f"no such state: {name}"
        for one in drawing.edges
        for name in (one.source, one.target)
        if name not in names
    ]
    if unknown:
        return unknown
    real = drawing.explore()
    wrong = [f"not in the code: {text}" for text in _wrong_edges(drawing, real)]
    missing = [f"not drawn: {' · '.join(one)}" for one in sorted(real - _covered(drawing))]
    return wrong + (missing if drawing.is_complete else [])


def _choices(drawing: Drawing) -> dict[str, tuple[DrawnEdge, ...]]:
    """Return the arrows out of each choice."""
    return {one.name: drawing.leaving(one.name) for one in drawing.states if one.kind == "choice"}


def _wrong_edges(drawing: Drawing, real: frozenset[Step]) -> Iterator[str]:
    choices = _choices(drawing)
    used: set[tuple[str, str]] = set()
    for edge in drawing.edges:
        if edge.source in choices:
            continue
        if not edge.events:
            yield f"{edge.source} · {edge.target}"
        for event in sorted(edge.events):
            if edge.target not in choices:
                ends = {edge.target}
            else:
                ends = {one.target for one in choices[edge.target]}
            found = {end for end in ends if (edge.source, event, end) in real}
            used |= {(edge.target, end) for end in found}
            if len(found) < min(len(ends), 2):  # what has one end is no choice
                yield f"{edge.source} · {event} · {edge.target}"
    for name, leaving in choices.items():
        yield from (f"{name} · {one.target}" for one in leaving if (name, one.target) not in used)


def _covered(drawing: Drawing) -> frozenset[Step]:
    """Return the steps that the arrows allow."""
    choices = _choices(drawing)
    found: set[Step] = set()
    for edge in drawing.edges:
        ends = choices.get(edge.target)
        targets = [edge.target] if ends is None else [one.target for one in ends]
        found |= {(edge.source, event, end) for event in edge.events for end in targets}
    return frozenset(found)
