"""High-water marks: the highest sequence that each agent reports, stored for the reconciler.

`note` is called after an acceptance and only changes memory. `flush` runs every few seconds, in a
separate task, and writes the marks that accepted batches do not show. The marks are a hint: a lost
mark is reported again with the next upload of the agent. Source: ADR 29.
"""

import itertools
from collections import OrderedDict
from typing import Final

import structlog

from sluice_protocol.errors import InvalidRecord, StoreError
from sluice_protocol.identity import Identity
from sluice_protocol.keys import high_water_key
from sluice_protocol.manifests import HighWaterMark, decode_record, encode_record
from sluice_protocol.outcomes import Applied, Found
from sluice_store.port import ObjectStore

FLUSH_INTERVAL_S: Final = 5.0
"""Between two flushes, and so between two writes of one (agent, boot) by one worker."""
BOOTS_MAX: Final = 10_000
"""Boots with a mark that is not written yet; above this the oldest is dropped."""
WRITES_MAX: Final = 64
"""Marks written in one flush; the next flush writes further ones."""

log = structlog.get_logger()


class HighWaterMarks:
    """The marks of one worker that are not written yet."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._unwritten: OrderedDict[tuple[str, str], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._unwritten)

    def note(self, who: Identity, high_water: int | None) -> None:
        """Note the mark of an accepted upload, unless the batch itself reaches it."""
        boot = (who.agent_id, who.boot_id)
        high = max(self._unwritten.get(boot, -1), -1 if high_water is None else high_water)
        if high <= who.seq_end:
            self._unwritten.pop(boot, None)
            return
        self._unwritten[boot] = high
        if len(self._unwritten) > BOOTS_MAX:
            self._unwritten.popitem(last=False)

    async def flush(self) -> int:
        """Write the oldest marks; return how many of them the store contains now.

        Raises:
            StoreError: The store is unreachable; this mark is dropped, the others are kept.
        """
        done = 0
        for agent_id, boot_id in list(itertools.islice(self._unwritten, WRITES_MAX)):
            high = self._unwritten.pop((agent_id, boot_id), None)
            if high is None:
                continue  # a batch that reaches the mark was accepted during the write before
            mark = HighWaterMark(agent_id=agent_id, boot_id=boot_id, seq_end=high)
            done += await self._raise_to(mark)
        return done

    async def _raise_to(self, mark: HighWaterMark) -> bool:
        """Write a mark unless the store has a higher one; a concurrent write ends the attempt.

        Values under one key only rise, so bytes never recur and an ETag is sufficient proof.
        """
        key, body = high_water_key(mark.agent_id, mark.boot_id), encode_record(mark)
        read = await self._store.get(key)
        if not isinstance(read, Found):
            return isinstance(await self._store.create(key, body), Applied)
        try:
            if decode_record(key, read.body, HighWaterMark).seq_end >= mark.seq_end:
                return True
        except InvalidRecord as error:
            log.warning("high_water_mark_unreadable", key=key, reason=error.reason)
        return isinstance(await self._store.replace(key, body, if_match=read.info.etag), Applied)


async def flush_guarded(marks: HighWaterMarks) -> None:
    """Flush once; an error of the store is logged, and a later flush tries again."""
    try:
        await marks.flush()
    except StoreError as error:
        log.warning("high_water_mark_not_written", reason=str(error))
