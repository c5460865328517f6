"""A store with data files of logs and their index chunks, without Delta and without Spark."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sluice_lake.data_files import DataFile
from sluice_lake.tables import LOGS
from sluice_protocol.index_chunk import (
    FileTerms,
    GroupTerms,
    IndexedFile,
    encode_chunk,
    text_terms,
)
from sluice_protocol.keys import LAKE
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_spark.errors import StopCheck, never_stop
from sluice_spark.index import (
    IndexProgress,
    IndexRemoval,
    WaitingDate,
    index_chunk_key,
    read_index_progress,
)
from sluice_store import ObjectStore

NOW_NS = 1_700_000_000 * NS_PER_S


def log_file(date: str, name: str) -> DataFile:
    path = f"accepted_date={date}/{name}.parquet"
    return DataFile(path=path, partition=date, size_bytes=10)


def indexed(path: str, *texts: bytes) -> FileTerms:
    """Return a data file with one row group of one record, whose text is the concatenated ones."""
    file = IndexedFile(path=path, size_bytes=10, groups=(1,))
    return FileTerms(file=file, groups=(terms_of(*texts),))


def terms_of(*texts: bytes) -> GroupTerms:
    """Return the terms of a row group with texts and without values."""
    none = np.zeros(0, np.int32)
    return GroupTerms(texts=text_terms(texts), values=none, text_bytes=sum(map(len, texts)))


async def put_chunk(store: ObjectStore, files: Sequence[DataFile]) -> ObjectKey:
    """Create the chunk of files, and return its key."""
    key = index_chunk_key("logs", files)
    await store.create(
        key, encode_chunk("logs", [indexed(one.path, b"some text of a line") for one in files])
    )
    return key


def due(*dates: str) -> tuple[WaitingDate, ...]:
    return tuple(WaitingDate(date=one, since_unix_ns=NOW_NS, due_unix_ns=NOW_NS) for one in dates)


@dataclass
class IndexedTable:
    """The files that the table names, and those that exist; a run removes the chunks of others."""

    store: ObjectStore
    named: list[DataFile] = field(default_factory=list)

    async def write(self, *files: DataFile) -> ObjectKey:
        """Write data files that the table names, and create their chunk."""
        for one in files:
            await self.store.create(ObjectKey(f"{LAKE}logs/{one.path}"), b"rows")
        self.named += files
        return await put_chunk(self.store, files)

    def replace(self, *files: DataFile) -> None:
        """Remove files from the table, as compaction does."""
        self.named = [one for one in self.named if one not in files]

    async def vacuum(self) -> None:
        """Remove every file that the table does not name."""
        kept = {f"{LAKE}logs/{one.path}" for one in self.named}
        pages = [page async for page in self.store.list(f"{LAKE}logs/")]
        for one in (one for page in pages for one in page.objects):
            if one.key not in kept:
                info = await self.store.head(one.key)
                await self.store.delete(one.key, info.incarnation)  # type: ignore[union-attr, arg-type]

    async def run(
        self,
        *dates: str,
        store: ObjectStore | None = None,
        now_ns: int = NOW_NS,
        stop: StopCheck = never_stop,
    ) -> int:
        """Run the removal with the stored record, or one in which dates are due."""
        used = store or self.store
        progress = await read_index_progress(used, "logs")
        if progress is None or dates:
            progress = IndexProgress(table_id="0a", table_version=7, waiting=due(*dates))
        current: dict[str, set[str]] = {}
        for one in self.named:
            current.setdefault(one.partition, set()).add(one.path)
        removal = IndexRemoval(store=used, table=LOGS, current=current, now_ns=now_ns, stop=stop)
        return await removal.run(progress)

    async def chunks(self) -> set[str]:
        pages = [page async for page in self.store.list("index/v1/logs/date=")]
        return {one.key for page in pages for one in page.objects}

    async def waiting(self) -> list[WaitingDate]:
        progress = await read_index_progress(self.store, "logs")
        assert progress is not None
        assert isinstance(progress.waiting, tuple)
        return list(progress.waiting)
