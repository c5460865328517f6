"""The name of a lane, and the lanes that exist in a store.

Source: ADR 23.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from sluice_protocol.authority import LANES_MAX
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import QUEUE, register_key
from sluice_protocol.units import ObjectKey
from sluice_store.port import ListPage, ObjectStore

_REGISTER: Final = re.compile(r"queue/v1/(?P<queue>[a-z0-9_-]+)\.(?P<lane>\d{3})/manifest")
_QUEUE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The name of one lane: a queue of 1 to 40 of `a-z 0-9 _ -`, and a number in range.

    `layout` and `after` are those of the authority (`Authority.layout`, `after_sequence`). A lane
    has a lane state for each layout. It has one register, which only the current layout can use; a
    new one continues behind the sequence `after`.
    """

    queue: str
    lane: int
    layout: int = field(default=0, compare=False)
    after: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if _QUEUE_NAME.fullmatch(self.queue) is None:
            raise BadUsage(f"queue name must be 1 to 40 of a-z, 0-9, _ and -, queue=`{self.queue}`")
        if not 0 <= self.lane < LANES_MAX:
            raise BadUsage(f"lane must be 0 to {LANES_MAX - 1}, lane=`{self.lane}`")

    @property
    def key(self) -> ObjectKey:
        """The key of the lane's register."""
        return register_key(self.queue, self.lane)


async def list_lanes(store: ObjectStore, queue: str | None = None) -> tuple[Lane, ...]:
    """Return every lane that exists, of one queue or of all, in order."""
    found: dict[str, Lane] = {}
    after = ""
    prefix = QUEUE if queue is None else f"{QUEUE}{queue}."
    while True:
        behind = ""
        async for page in store.list(prefix, start_after=after):
            for listed in page.objects:
                match = _REGISTER.fullmatch(listed.key)
                if match is not None:
                    lane = Lane(queue=match["queue"], lane=int(match["lane"]))
                    found[_folder_of(listed.key)] = lane
            if behind := _behind_segments(page, found):
                break
        if not behind:
            return tuple(found.values())
        after = behind


def _behind_segments(page: ListPage, found: Collection[str]) -> str:
    """Return where the next lane begins, if a page ends among the keys of a lane that was found.

    Usually one page contains every lane. Those of a lane with many segments are not read.
    """
    if page.last or not page.objects:
        return ""
    folder = _folder_of(page.objects[-1].key)
    return f"{folder}/~" if folder in found else ""


def _folder_of(key: ObjectKey) -> str:
    return QUEUE + key.removeprefix(QUEUE).partition("/")[0]
