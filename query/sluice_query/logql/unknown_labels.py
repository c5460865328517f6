"""Labels of a question that no record has, and the similar ones that exist.

Such a question is answered, because a record without a label has its empty text. Most often its
name is a mistake, so the summary of the answer names it. Records are searched for it only if the
answer does not show that some have it.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sluice_protocol.errors import SluiceError
from sluice_protocol.fields import label_of
from sluice_query.logql.expressions import (
    Both,
    JsonParser,
    LabelCondition,
    LabelFilter,
    LineFilter,
    LineFormat,
    LogfmtParser,
    LogQuery,
    Matcher,
    MatchOperator,
)
from sluice_query.logql.grammar import parse_logql, read_labels
from sluice_query.logql.lexer import refuse_at
from sluice_query.logql.mistakes import nearest
from sluice_query.logql.names import FIELD_LABELS, field_of
from sluice_query.logql.planning import narrowed, ranges_of
from sluice_query.logql.stages import ERRORS
from sluice_query.request import COLUMN_FIELDS, MAPS, FieldList, Query
from sluice_query.result import LabelledSeries, QuerySummary, Row
from sluice_query.views import FieldListResult

if TYPE_CHECKING:
    from sluice_query.search import Searcher
    from sluice_query.streaming import StreamPart

RECORDS_MAX: Final = 100_000
"""Records in whose attributes a label is searched."""
LINES_MAX: Final = 1_000
"""Lines that are parsed to find a label."""
_KEYS_MAX: Final = 10_000
_SEARCH_S_MAX: Final = 3.0
_SHOWN_MAX: Final = 5
_OF_LINES: Final = 'write a line filter such as `|= "text"`, or a parser such as `| json` before it'
_OF_TIMES: Final = "choose the time with `from` and `to`, or `--since` and `--to`"
_MEANT: Final = {
    **dict.fromkeys(("body", "line", "message", "msg", "text"), _OF_LINES),
    **dict.fromkeys(("time", "ts", "timestamp"), _OF_TIMES),
}
"""What is no label in most stores, and what to write instead."""


class UnknownLabels:
    """The labels of a question that no record of its answer has shown yet."""

    def __init__(self, query: Query) -> None:
        self._query = query
        question = parse_logql(query.logql)
        self._parts: Sequence[LogQuery] = [question] if isinstance(question, LogQuery) else []
        self._needed: set[str] = set()
        if not isinstance(question, LogQuery):
            ranges = [*ranges_of(question)]
            self._parts = [one.query for one in ranges]
            self._needed = {one.unwrap.name for one in ranges if one.unwrap is not None}
        for part in self._parts:
            self._needed |= _needed(part)
        named = (*FIELD_LABELS, *COLUMN_FIELDS[query.kind])
        self._fields = {one for one in named if field_of(one, query.kind) is not None}
        self._left = {
            name: start
            for name, start in read_labels(query.logql).items()
            if name not in self._fields | ERRORS and not name.startswith("__")
        }

    def see(self, records: Iterable[Row], series: Iterable[LabelledSeries] = ()) -> None:
        """Note the labels of some records and series of the answer."""
        for one in series:
            self._found(one.labels)
        for row in records:
            if not self._left:
                return
            self._found(_labels_of(row))

    def _found(self, labels: Iterable[str]) -> None:
        for name in labels:
            self._left.pop(name, None)
            self._left.pop(f"{name}_extracted", None)

    async def with_hints(self, summary: QuerySummary, searcher: "Searcher") -> QuerySummary:
        """Return the summary of the answer with a hint for each label that no record has.

        If the records cannot be searched in a few seconds, there are no hints.
        """
        if summary.results:
            self._found(self._needed)
        left_s = searcher.settings.time_s_max - summary.elapsed_ms / 1_000
        if not self._left or left_s <= 0:
            return summary
        settings = replace(searcher.settings, time_s_max=min(_SEARCH_S_MAX, left_s / 2))
        try:
            hints = await self._hints(replace(searcher, settings=settings, lists_accepted=False))
        except SluiceError:
            return summary
        return replace(summary, hints=hints)

    async def _hints(self, searcher: "Searcher") -> tuple[str, ...]:
        query = self._query
        whole = Query(from_ns=query.from_ns, to_ns=query.to_ns, kind=query.kind)
        view = FieldList(keys_max=_KEYS_MAX, records_max=RECORDS_MAX)
        listed = (await searcher.search(replace(whole, view=view))).view
        if not isinstance(listed, FieldListResult) or not listed.records or listed.more:
            return ()
        known = {one.label for one in listed.fields if one.label is not None}
        parsed = 0
        for part in self._parts:
            if not any(map(_makes_any_label, part.stages)):
                continue
            lines = replace(whole, limit=LINES_MAX, newest_first=True)
            found = (await searcher.search(narrowed(lines, _parsing(part)))).records
            parsed += len(found)
            known.update(name for row in found for name in _labels_of(row))
            if not found:  # it may have any label
                selected = {one.name for one in part.matchers}
                self._found([name for name in self._left if name not in selected])
        self._found(known)
        what = f"none of {RECORDS_MAX:,} records" if listed.sampled else "no record"
        if parsed:
            what = f"none of {parsed:,} parsed lines"
        return tuple(
            str(refuse_at(f"{what} has this label", start, self._advice(name, known), name))
            for name, start in self._left.items()
        )

    def _advice(self, name: str, known: set[str]) -> str:
        if name in _MEANT:
            return _MEANT[name]
        near = nearest(name, sorted(self._fields | known))
        if near:
            return f"write `{near}`"
        others = sorted(known - {"agent_id", "boot_id"})
        more = " and others" if len(others) > _SHOWN_MAX else ""
        return f"there are {', '.join(others[:_SHOWN_MAX])}{more}"


async def hinted_stream(
    parts: AsyncGenerator["StreamPart"], searcher: "Searcher", query: Query
) -> AsyncGenerator["StreamPart"]:
    """Yield the parts of a stream; its summary, which is the last, has hints."""
    unknown, last = UnknownLabels(query), None
    async with aclosing(parts):
        async for part in parts:
            unknown.see(part.records)
            if part.summary is None:
                yield part
            else:
                last = part
    if last is not None and last.summary is not None:
        yield replace(last, summary=await unknown.with_hints(last.summary, searcher))


def _needed(question: LogQuery) -> set[str]:
    """Return labels that every record of a log query has; an error passes comparisons."""
    conditions: list[LabelCondition] = [*question.matchers]
    conditions += [one.condition for one in question.stages if isinstance(one, LabelFilter)]
    names = set()
    while conditions:
        one = conditions.pop()
        if isinstance(one, Both):
            conditions += [one.left, one.right]
        elif isinstance(one, Matcher) and one.operator is MatchOperator.EQUAL and one.value:
            names.add(one.name)
    return names


def _makes_any_label(stage: object) -> bool:
    return isinstance(stage, JsonParser | LogfmtParser) and not stage.extractions


def _parsing(question: LogQuery) -> LogQuery:
    """Return a log query without the stages that remove lines or labels."""
    kept = (LineFilter, JsonParser, LogfmtParser, LineFormat)
    return LogQuery(question.matchers, tuple(s for s in question.stages if isinstance(s, kept)))


def _labels_of(row: Row) -> Iterable[str]:
    """Yield the labels of a record."""
    for place in (*MAPS, "labels"):
        keys = row.get(place)
        if isinstance(keys, dict):
            yield from keys
            yield from map(label_of, keys)
