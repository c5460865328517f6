"""Every picture, and its text after it was compared with the code."""

from pathlib import Path
from typing import Final

from deploy.pictures import acceptance, batch_path, deletion, leases, parked, queue_lane
from deploy.pictures.drawing import Drawing, differences
from deploy.pictures.svg import render_svg
from sluice_protocol.errors import BadUsage

FOLDER: Final = Path(__file__).parents[2] / "docs" / "pictures"
DRAWINGS: Final = tuple(
    one.DRAWING for one in (batch_path, acceptance, queue_lane, leases, deletion, parked)
)


def render(drawing: Drawing) -> str:
    """Return the text of a picture.

    Raises:
        BadUsage: The picture and the code differ.
    """
    found = differences(drawing)
    if found:
        raise BadUsage(
            f"picture and code differ: {'; '.join(found)}; edit the picture,"
            f" picture=`{drawing.name}`"
        )
    return render_svg(drawing)
