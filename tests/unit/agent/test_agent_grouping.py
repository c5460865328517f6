"""Which lines are one record: traces of several languages, indentation, and bounds."""

import itertools
import time
from typing import Any

import numpy as np
import pytest

from sluice_agent.inputs.columns import find_newlines
from sluice_agent.inputs.grouping import GROUP_BYTES_MAX, GROUP_LINES_MAX, group_lines

JAVA = b"""\
2026-11-28 10:00:00,123 ERROR [main] c.e.Shop - order failed
java.lang.IllegalStateException: no stock
\tat com.example.Shop.order(Shop.java:12)
\tat com.example.Main.main(Main.java:3)
Caused by: java.io.IOException: closed
\tat com.example.Db.read(Db.java:99)
\t... 2 more
"""
JAVA_UNCAUGHT = b"""\
Exception in thread "main" java.lang.RuntimeException: boom
\tat Main.main(Main.java:3)
\tSuppressed: java.lang.Error: closing
\t\tat Main.close(Main.java:7)
"""
PYTHON = b"""\
ERROR:root:cannot pay
Traceback (most recent call last):
  File "/app/pay.py", line 3, in pay
    charge()
  File "/app/pay.py", line 9, in charge
    raise KeyError("card")
KeyError: 'card'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/pay.py", line 5, in pay
    raise PayError from None
shop.PayError
"""
GO = b"""\
panic: runtime error: index out of range [5] with length 3

goroutine 1 [running]:
main.main()
\t/app/main.go:8 +0x1d
main.(*Shop).order(0xc000012345, {0x10, 0x20})
\t/app/shop.go:10 +0x2f
created by main.start in goroutine 7
\t/app/main.go:5 +0x9e
exit status 2
"""
GO_SERVER = b"""\
2026/11/28 10:00:00 http: panic serving 10.0.0.1:5000: boom
goroutine 34 [running]:
net/http.(*conn).serve.func1()
\t/usr/lib/go/src/net/http/server.go:1850 +0xbf
"""
NODE = b"""\
/app/index.js:3
    throw new TypeError("boom");
    ^

TypeError: boom
    at main (/app/index.js:3:11)
    at Object.<anonymous> (/app/index.js:6:1) {
  code: 'E_BOOM'
}
"""
DOTNET = b"""\
Unhandled exception. System.InvalidOperationException: outer
 ---> System.ArgumentException: inner
   at Shop.Order() in /src/Shop.cs:line 4
   --- End of inner exception stack trace ---
   at Program.Main() in /src/Program.cs:line 9
--- End of stack trace from previous location ---
   at Program.Run()
"""
TRACES = {
    "java": JAVA, "java_uncaught": JAVA_UNCAUGHT, "python": PYTHON, "go": GO,
    "go_server": GO_SERVER, "node": NODE, "dotnet": DOTNET,
}  # fmt: skip


def grouped(data: bytes, **options: Any) -> list[bytes]:
    """Return the text of each group of whole lines."""
    newlines = find_newlines(data)
    found = group_lines(data, newlines, complete=True, **options)
    edges = [0, *(int(newlines[end]) + 1 for end in found.ends)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("after", [b"next\n", b"2026-11-28 10:00:01 INFO next\n"])
def test_a_trace_is_one_record_between_two_others(name: str, after: bytes) -> None:
    trace = TRACES[name]
    assert grouped(b"before\n" + trace + after) == [b"before\n", trace, after]


def test_an_indented_line_and_a_closing_bracket_continue_a_line() -> None:
    one, two = b"config {\n  a: 1\n\n}\n", b"list:\n\t- x\n"
    assert grouped(one + two) == [b"config {\n  a: 1\n", b"\n", b"}\n", two]
    assert grouped(b"config {\n  a: 1\n}\n") == [b"config {\n  a: 1\n}\n"]


def test_a_name_of_an_exception_without_frames_is_a_record() -> None:
    lines = [b"2026-11-28 10:00:00 ERROR failed\n", b"app.PayError: no card\n", b"next\n"]
    assert grouped(b"".join(lines)) == lines


def test_a_trace_that_is_cut_ends_before_a_line_with_a_time() -> None:
    cut = PYTHON[: PYTHON.index(b"KeyError: ")]
    after = b"2026-11-28 10:00:01 INFO next\n"
    assert grouped(cut + after) == [cut, after]


@pytest.mark.parametrize("size", [1, 3_000])
def test_a_trace_without_end_becomes_several_records(size: int) -> None:
    """The bounds count from the start of a group, and nothing is lost."""
    data = b"start\n" + b"".join(b"\tat %d %s\n" % (n, b"x" * size) for n in range(3_500))
    found = grouped(data)
    assert b"".join(found) == data
    assert max(len(one) for one in found) <= GROUP_BYTES_MAX
    assert max(one.count(b"\n") for one in found) <= GROUP_LINES_MAX
    assert len(found) == max(4, -(-len(data) // GROUP_BYTES_MAX))


def test_the_last_group_is_open() -> None:
    """Also a line that a trace may follow, with the trace."""
    for end in range(1, JAVA.count(b"\n") + 1):
        data = b"".join(JAVA.splitlines(keepends=True)[:end])
        found = group_lines(b"before\n" + data, find_newlines(b"before\n" + data))
        assert (found.ends.tolist(), found.open_from) == ([0], 1)
        assert found.is_ordinary == (end == 1)


def test_a_pattern_decides_in_place_of_the_rules() -> None:
    data = b"\tno start\nA 1\nB\n\tC\nA 2\n"
    starts = np.array([line.startswith(b"A") for line in data.splitlines()])
    assert grouped(data, starts=starts) == [b"\tno start\n", b"A 1\nB\n\tC\n", b"A 2\n"]


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "line",
    [
        b"a" * 400 + b"(" * 400,
        b"A." * 4000,
        b"[" * 9000,
        b" ^" + b"~" * 100_000 + b"x",
        b"[]" * 9000,
    ],
)
def test_a_hostile_line_takes_linear_time(line: bytes) -> None:
    """Four hundred of them."""
    begun = time.process_time()
    for before in (b"x", b" x", b"panic: x", b"Traceback (most recent call last):"):
        grouped(b"\n".join([before, *([line] * 100)]) + b"\n")
    assert time.process_time() - begun < 2
