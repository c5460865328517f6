"""The pictures are current, agree with the code, and are readable in both colour schemes."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from deploy.pictures.catalogue import DRAWINGS, FOLDER, render
from deploy.pictures.drawing import Drawing, DrawnEdge, differences
from deploy.pictures.queue_lane import VERDICTS
from deploy.pictures.queue_lane import explore as explore_lane
from deploy.pictures.svg import DARK, LIGHT, describe

from sluice_protocol import keys
from sluice_protocol.errors import BadUsage

ROOT = Path(__file__).parents[2]
CONTRAST_MIN = 4.5
"""WCAG 2.2, success criterion 1.4.3."""
EACH = pytest.mark.parametrize("drawing", DRAWINGS, ids=[one.name for one in DRAWINGS])
COMPLETE = [one for one in DRAWINGS if one.is_complete]
(PATH,) = (one for one in DRAWINGS if not one.is_complete)


def explored(drawing: Drawing, edges: tuple[DrawnEdge, ...]) -> Drawing:
    """Return the drawing with other edges; the code is explored once."""
    steps = drawing.explore()
    return replace(drawing, edges=edges, explore=lambda: steps)


@EACH
def test_each_picture_is_current(drawing: Drawing) -> None:
    shown = (FOLDER / f"{drawing.name}.svg").read_text(encoding="utf-8")
    assert shown == render(drawing), "run `make docs`"


def test_each_picture_is_in_a_page() -> None:
    assert {one.stem for one in FOLDER.glob("*.svg")} == {one.name for one in DRAWINGS}
    pages = "".join(one.read_text(encoding="utf-8") for one in (ROOT / "docs").glob("*.md"))
    shown = re.findall(r"!\[([^\]]+)\]\(pictures/([\w-]+)\.svg\)", pages)
    assert {name for _, name in shown} == {one.name for one in DRAWINGS}
    assert all(len(text) > 20 for text, _ in shown), "a picture without a text that replaces it"


@pytest.mark.parametrize("drawing", COMPLETE, ids=[one.name for one in COMPLETE])
def test_a_wrong_target_is_found(drawing: Drawing) -> None:
    """Every arrow is bent to every other state; a choice is several steps."""
    steps = explored(drawing, drawing.edges)
    planted = 0
    for at, edge in enumerate(drawing.edges):
        for state in drawing.states:
            if state.name == edge.target or state.kind == "choice":
                continue
            bent = replace(edge, target=state.name)
            edges = (*drawing.edges[:at], bent, *drawing.edges[at + 1 :])
            assert differences(replace(steps, edges=edges)), bent
            planted += 1
    assert planted > len(drawing.edges)


@pytest.mark.parametrize("drawing", COMPLETE, ids=[one.name for one in COMPLETE])
def test_an_invented_arrow_is_found(drawing: Drawing) -> None:
    names = {one.name for one in drawing.states if one.kind != "choice"}
    events = set().union(*(one.events for one in drawing.edges))
    real = drawing.explore()
    steps = explored(drawing, drawing.edges)
    wrong = {
        (source, event, target)
        for source in names
        for event in events
        for target in names
        if (source, event, target) not in real
    }
    assert wrong
    for source, event, target in sorted(wrong):
        added = DrawnEdge(source=source, target=target, label="l", events=frozenset({event}))
        assert differences(replace(steps, edges=(*drawing.edges, added))), added


def test_a_picture_that_differs_is_not_rendered() -> None:
    drawing = COMPLETE[0]
    with pytest.raises(BadUsage, match="not drawn"):
        render(explored(drawing, drawing.edges[1:]))


@pytest.mark.parametrize(
    ("source", "event", "target"),
    [
        ("gateway", "write", keys.LAKE),
        ("gc", "write", keys.ACCEPTED),
        (keys.LAKE, "read", "gateway"),
        ("agent", "POST /v1/batches", "query"),
        ("agent", "POST /v1/other", "gateway"),
        ("reconciler", "delete-version", keys.RAW_BLOBS),
    ],
)
def test_an_arrow_without_a_right_is_found(source: str, event: str, target: str) -> None:
    added = DrawnEdge(source=source, target=target, label="l", events=frozenset({event}))
    assert differences(explored(PATH, (*PATH.edges, added)))


def test_the_lane_is_explored_with_every_verdict() -> None:
    found = {(source, event) for source, event, _ in explore_lane()}
    assert {(source, verdict.__name__) for source, verdict in VERDICTS} <= found


@EACH
def test_a_picture_has_a_text(drawing: Drawing) -> None:
    picture = ET.fromstring(render(drawing))  # noqa: S314 - a file of this project
    found = {one.tag.rpartition("}")[2]: one for one in picture}
    assert picture.get("role") == "img"
    assert picture.get("aria-labelledby") == "title desc"
    assert found["title"].text == drawing.title
    assert found["desc"].text == describe(drawing)
    for edge in drawing.edges:
        assert edge.label in describe(drawing)


@EACH
def test_a_picture_needs_no_other_file(drawing: Drawing) -> None:
    shown = render(drawing).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert re.findall(r"https?:|url\(|href|<script", shown) == []


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour (WCAG 2.2)."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_texts_and_lines_have_contrast(scheme: dict[str, str]) -> None:
    for name, colour in scheme.items():
        for under in ("page", "box"):
            if name not in ("page", "box"):
                light, dark = sorted((luminance(colour), luminance(scheme[under])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= CONTRAST_MIN, (name, under)
