"""However a file is cut into writes, polls and runs, its records are those of one read."""

import re
import tempfile
from pathlib import Path
from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st
from support.agent_formats import Reader, cri, docker, read_whole

from sluice_agent.inputs import containers
from sluice_agent.inputs.columns import find_newlines
from sluice_agent.inputs.containers import group_wrapped, unwrap_cri
from sluice_agent.inputs.formats import form_of
from sluice_agent.inputs.grouping import LineGrouping, group_lines
from sluice_agent.settings import BlockLimits

LINES = (
    "", "plain", "  indented", "\tat a.B(C.java:1)", "java.lang.IllegalStateException: no",
    "2026-11-28 10:00:00 ERROR failed", "Traceback (most recent call last):", '  File "a", line 1',
    "KeyError: 'a'", "During handling of the above exception, another exception occurred:",
    "panic: boom", "goroutine 1 [running]:", "main.main()", "created by main", "Caused by: x",
    "   ^", "TypeError: boom", "}", '{"message":"m","n":1}', '{"time":"x"}', "{", "{x}",
    "level=info msg=hi", "a=b c=d", "<11>1 2026-11-28T10:00:00Z h a - - - m", "--- End of stack",
    "\N{SNOWMAN} wide", "x" * 300,
)  # fmt: skip
PLAIN = st.sampled_from(LINES).map(lambda text: text.encode() + b"\n")
WRAPPED = st.tuples(
    st.sampled_from(["stdout", "stderr"]), st.sampled_from("FFFP"), st.sampled_from(LINES)
)
FILES = st.one_of(
    st.lists(PLAIN, max_size=40),
    st.lists(st.one_of(WRAPPED.map(lambda one: cri(*one)), PLAIN), max_size=40),
    st.lists(WRAPPED.map(lambda one: cri(*one)), max_size=40),
    st.lists(WRAPPED.map(lambda one: docker(*one)), max_size=40),
)


@given(FILES, st.data())
def test_cuts_and_kills_change_no_record(lines: list[bytes], data: st.DataObject) -> None:
    content = b"".join(lines)
    limits = BlockLimits(read_bytes=data.draw(st.sampled_from([64, 700, 100_000])))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "app.log"
        expected = read_whole(path, content)
        path.write_bytes(b"")
        reader = Reader(path, {"block": limits})
        edges = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
        for start, end in zip([0, *edges], [*edges, len(content)], strict=True):
            with path.open("ab") as file:
                file.write(content[start:end])
            reader.poll(0.01)
            if data.draw(st.booleans()):
                reader.restart()
        reader.poll(final=True)
        assert reader.input is not None
        reader.input.close()
    assert sorted(reader.records, key=str) == sorted(expected, key=str)


@given(st.lists(PLAIN, max_size=60))
def test_groups_are_those_of_visiting_every_line(lines: list[bytes]) -> None:
    """Lines that no rule can connect are not visited."""
    data = b"".join(lines)
    grouping = LineGrouping()
    groups = [one for at, line in enumerate(lines) for one in grouping.add(at, line[:-1])]
    open_from = grouping.start if lines else 0
    found = group_lines(data, find_newlines(data))
    assert (found.ends.tolist(), found.open_from) == ([last for _, last in groups], open_from)
    found = group_lines(data, find_newlines(data), complete=True)
    assert found.ends.tolist() == [last for _, last in groups + grouping.end()]


RUNS = st.tuples(
    st.sampled_from(["stdout", "stderr"]),
    st.sampled_from("FFFFP"),
    st.lists(st.sampled_from(LINES), min_size=1, max_size=4),
    st.sampled_from([1, 1, 30, 64, 150]),
    st.sampled_from([0, 0, 100, 700, 5000]),
)


QUIET = ("stderr", "F", ["x"], 64, 0)
TRACE = [
    ("stdout", "F", ["2026-11-28 10:00:00 ERROR failed"], 1, 0), QUIET,
    ("stdout", "F", ["java.lang.IllegalStateException: no"], 1, 0), QUIET,
    ("stdout", "F", ["\tat a.B(C.java:1)"], 1, 0),
]  # fmt: skip
CRASH = [("stdout", "F", ["panic: boom"], 1, 0), ("stdout", "F", ["main.main()"] * 150, 1, 0)]


@given(st.lists(RUNS, max_size=12), st.booleans(), st.booleans())
@example(TRACE, False, True)
@example(CRASH, False, True)
def test_far_lines_of_containers_need_no_visit(
    runs: list[tuple[str, str, list[str], int, int]],
    is_json: bool,
    complete: bool,
) -> None:
    """Runs of ordinary lines between others have the groups that visiting every line finds."""
    lines: list[bytes] = []
    at_ms = 0
    for stream, flag, texts, count, step_ms in runs:
        for place in range(count):
            ordinary = ("plain", "2026-11-28 10:00:00 INFO x", "a.Error: no")[place % 3]
            for text in texts if count == 1 else [ordinary]:
                at_ms += step_ms if count == 1 else 1
                time = f"2026-11-28T10:{at_ms // 60_000:02d}:{at_ms // 1000 % 60:02d}"
                line = f"{time}.{at_ms % 1000:03d}Z {stream} {flag if count == 1 else 'F'} {text}"
                lines.append(line.encode())
    alone = re.compile(rb"\{") if is_json else None
    with patch.object(containers, "_FAR_LINES", len(lines) + 1):
        expected = group_wrapped(lines, unwrap_cri, alone=alone, complete=complete)
    assert group_wrapped(lines, unwrap_cri, alone=alone, complete=complete) == expected


@given(st.binary(max_size=200))
def test_any_bytes_have_a_form_or_none(line: bytes) -> None:
    form_of(line)
