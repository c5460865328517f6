"""Keeps what agents say they have made, where the reconciler can see it.

`note` stands behind an acceptance and only writes to memory; `flush` runs beside the uploads, a few
seconds apart, and writes what the accepted batches do not show by themselves. Best effort: what is
lost here is told again with the agent's next upload. Source: ADR 0046.
"""

from collections import OrderedDict
from typing import Final

import structlog

from sluice_protocol.errors import InvalidRecord, StoreError
from sluice_protocol.identity import Identity
from sluice_protocol.keys import high_water_key
from sluice_protocol.manifests import HighWaterMark, decode_record, encode_record
from sluice_protocol.outcomes import Applied, Found
from sluice_store.port import ObjectStore

HIGH_WATER_AFTER_S: Final = 5.0
"""Between two flushes, and so between two writes of one (agent, boot) by one worker."""
LIVES_MAX: Final = 10_000
"""Lives whose mark waits to be written; the one that was noted first is dropped."""
WRITES_MAX: Final = 64
"""Marks written in one flush; the others wait for the next."""

log = structlog.get_logger()


class HighWaterMarks:
    """The marks of one worker that are not written yet."""

    def __init__(self, store: ObjectStore) -> None:
        """Takes the store that the reconciler reads."""
        self._store = store
        self._waiting: OrderedDict[tuple[str, str], int] = OrderedDict()

    def __len__(self) -> int:
        """Gives how many lives wait."""
        return len(self._waiting)

    def note(self, who: Identity, high_water: int | None) -> None:
        """Takes the mark of an accepted upload; a mark that the batch itself reaches is nothing."""
        life = (who.agent_id, who.boot_id)
        high = max(self._waiting.get(life, -1), -1 if high_water is None else high_water)
        if high <= who.seq_end:
            self._waiting.pop(life, None)
            return
        self._waiting[life] = high
        if len(self._waiting) > LIVES_MAX:
            self._waiting.popitem(last=False)

    async def flush(self) -> int:
        """Writes the marks that waited longest; gives how many reached the store or stood there.

        Raises:
            StoreError: The store did not answer; the mark in hand is dropped, the others wait.
        """
        done = 0
        for _ in range(min(WRITES_MAX, len(self._waiting))):
            (agent_id, boot_id), high = self._waiting.popitem(last=False)
            mark = HighWaterMark(agent_id=agent_id, boot_id=boot_id, seq_end=high)
            done += await self._raise_to(mark)
        return done

    async def _raise_to(self, mark: HighWaterMark) -> bool:
        """Writes a mark unless a higher one stands. A rival's write or an unknown outcome ends it.

        Values under one key only rise, so equal bytes never recur and an ETag is proof enough.
        """
        key, body = high_water_key(mark.agent_id, mark.boot_id), encode_record(mark)
        read = await self._store.get(key)
        if not isinstance(read, Found):
            return isinstance(await self._store.create(key, body), Applied)
        try:
            if decode_record(key, read.body, HighWaterMark).seq_end >= mark.seq_end:
                return True
        except InvalidRecord as error:
            log.warning("high-water mark unreadable, written anew", key=key, reason=error.reason)
        return isinstance(await self._store.replace(key, body, if_match=read.info.etag), Applied)


async def flush_guarded(marks: HighWaterMarks) -> None:
    """Flushes once; trouble of the store is logged and waited out."""
    try:
        await marks.flush()
    except StoreError as error:
        log.warning("high-water mark not written", reason=str(error))
