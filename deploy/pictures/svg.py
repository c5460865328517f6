"""Render a drawing as SVG: boxes below each other, and one vertical line for each target.

Each arrow leaves its row to the right, meets the line of its target, and the line ends in the title
of the target. Texts are inside of boxes, so nothing overlaps. The file has both colour schemes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Final

from deploy.pictures.drawing import Drawing, DrawnEdge, DrawnState

LIGHT: Final = {
    "page": "#ffffff",
    "box": "#f6f8fa",
    "text": "#1f2328",
    "muted": "#57606a",
    "start": "#57606a",
    "action": "#0550ae",
    "choice": "#7d4e00",
    "good": "#116329",
    "bad": "#a40e26",
    "store": "#6639ba",
}
DARK: Final = {
    "page": "#0d1117",
    "box": "#161b22",
    "text": "#e6edf3",
    "muted": "#9198a1",
    "start": "#9198a1",
    "action": "#79b8ff",
    "choice": "#e3b341",
    "good": "#56d364",
    "bad": "#ff7b72",
    "store": "#d2a8ff",
}
_MARGIN: Final = 20
_TITLE_PX: Final = 26
_ROW_PX: Final = 20
_GAP_PX: Final = 14
_TRACK_PX: Final = 16
_CHAR_PX: Final = 7.4
"""Width of a character at 13 px, more than the average of usual fonts."""
_STYLE: Final = """\
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--text); }
.name { font-weight: 600; }
.note { fill: var(--muted); font-size: 12px; }
.box { fill: var(--box); stroke-width: 1.5; }
.line { fill: none; stroke-width: 1.5; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBox:
    """Where a box and its rows are.

    Attributes:
        state: The state.
        top: Its upper edge.
        rows: The arrows out of it, with the height of each.
    """

    state: DrawnState
    top: float
    rows: tuple[tuple[DrawnEdge, float], ...]

    @property
    def entry(self) -> float:
        """The height at which arrows enter."""
        return self.top + _TITLE_PX / 2

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.top + _TITLE_PX + _ROW_PX * len(self.rows) + (6 if self.rows else 0)


def render_svg(drawing: Drawing) -> str:
    """Return the picture as one file."""
    boxes = _place(drawing)
    width = _box_width(drawing)
    tracks = _assign_tracks(boxes)
    across = _MARGIN + width + _TRACK_PX * (max(tracks.values(), default=0) + 2)
    height = max(one.bottom for one in boxes.values()) + _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across:.0f} {height:.0f}"'
        f' width="{across:.0f}" height="{height:.0f}" role="img" aria-labelledby="title desc">'
    )
    parts = [
        head,
        f'<title id="title">{escape(drawing.title)}</title>',
        f'<desc id="desc">{escape(describe(drawing))}</desc>',
        f"<style>\n{_colours()}{_STYLE}</style>",
        f'<rect width="{across:.0f}" height="{height:.0f}" style="fill: var(--page)"/>',
    ]
    right = _MARGIN + width
    for target, track in tracks.items():
        parts += _draw_track(boxes, target, right, right + _TRACK_PX * (track + 1))
    for box in boxes.values():
        parts += _draw_box(box, boxes, width)
    return "\n".join([*parts, "</svg>", ""])


def describe(drawing: Drawing) -> str:
    """Return the picture in words: its summary, and each arrow."""
    titles = {one.name: one.title for one in drawing.states}
    arrows = [f"{titles[one.source]}, {one.label}: {titles[one.target]}." for one in drawing.edges]
    return " ".join([drawing.summary, *arrows])


def _place(drawing: Drawing) -> dict[str, PlacedBox]:
    found: dict[str, PlacedBox] = {}
    top = float(_MARGIN)
    for state in drawing.states:
        leaving = drawing.leaving(state.name)
        first = top + _TITLE_PX + _ROW_PX / 2
        rows = tuple((one, first + _ROW_PX * at) for at, one in enumerate(leaving))
        found[state.name] = PlacedBox(state=state, top=top, rows=rows)
        top = found[state.name].bottom + _GAP_PX
    return found


def _box_width(drawing: Drawing) -> int:
    titles = [len(one.title) + len(one.note) + 6 for one in drawing.states]
    names = {one.name: len(one.title) for one in drawing.states}
    labels = [len(one.label) + names[one.target] + 9 for one in drawing.edges]
    return int(max(titles + labels) * _CHAR_PX)


def _assign_tracks(boxes: Mapping[str, PlacedBox]) -> dict[str, int]:
    """Return the vertical line of each target; lines that do not meet may share a place."""
    spans: dict[str, tuple[float, float]] = {}
    for name, box in boxes.items():
        ends = [at for one in boxes.values() for edge, at in one.rows if edge.target == name]
        if ends:
            spans[name] = (min(*ends, box.entry), max(*ends, box.entry))
    found: dict[str, int] = {}
    for name in sorted(spans, key=lambda one: (spans[one][1] - spans[one][0], spans[one], one)):
        low, high = spans[name]
        taken = {
            found[other]
            for other in found
            if spans[other][0] <= high + _ROW_PX and low <= spans[other][1] + _ROW_PX
        }
        found[name] = next(at for at in range(len(spans)) if at not in taken)
    return found


def _draw_track(
    boxes: Mapping[str, PlacedBox], target: str, right: float, across: float
) -> Iterator[str]:
    """Yield the line of a target, a dot for each arrow that joins it, and its head."""
    box = boxes[target]
    colour = f"var(--{box.state.kind})"
    heights = [at for one in boxes.values() for edge, at in one.rows if edge.target == target]
    entry = box.entry
    low, high = min(*heights, entry), max(*heights, entry)
    path = f"M {across:.0f} {low:.0f} V {high:.0f} M {across:.0f} {entry:.0f} H {right + 7:.0f}"
    path += "".join(f" M {right:.0f} {at:.0f} H {across:.0f}" for at in heights)
    yield f'<path class="line" style="stroke: {colour}" d="{path}"/>'
    yield from (
        f'<circle cx="{across:.0f}" cy="{at:.0f}" r="2.5" style="fill: {colour}"/>'
        for at in heights
    )
    yield (f'<path style="fill: {colour}" d="M {right + 1:.0f} {entry:.0f} l 8 -4 v 8 z"/>')


def _draw_box(box: PlacedBox, boxes: Mapping[str, PlacedBox], width: int) -> Iterator[str]:
    height = box.bottom - box.top
    colour = f"var(--{box.state.kind})"
    dashed = ' stroke-dasharray="5 3"' if box.state.kind in ("choice", "store") else ""
    yield (
        f'<rect class="box" x="{_MARGIN}" y="{box.top:.0f}" width="{width}" height="{height:.0f}"'
        f' rx="6" style="stroke: {colour}"{dashed}/>'
    )
    note = f'<tspan class="note" dx="8">{escape(box.state.note)}</tspan>' if box.state.note else ""
    yield (
        f'<text x="{_MARGIN + 12}" y="{box.top + 18:.0f}"><tspan class="name"'
        f' style="fill: {colour}">{escape(box.state.title)}</tspan>{note}</text>'
    )
    for edge, at in box.rows:
        target = escape(boxes[edge.target].state.title)
        yield f'<text x="{_MARGIN + 28}" y="{at + 4:.0f}">{escape(edge.label)}</text>'
        yield (
            f'<text class="note" x="{_MARGIN + width - 12}" y="{at + 4:.0f}" text-anchor="end">'
            f"\u2192 {target}</text>"
        )


def _colours() -> str:
    light, dark = (
        " ".join(f"--{name}: {value};" for name, value in one.items()) for one in (LIGHT, DARK)
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
