"""Run `sluice` and note each function that it calls; `benchmarks.trips` starts this as a process.

Nothing of the product is imported before the hook is set, so each file that a command imports is
counted.
"""

import json
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

ROOT: Final = Path(__file__).parent.parent
_OTHERS: Final = (".venv", "tests", "benchmarks")

_seen: set[CodeType] | None = None


def counted_main() -> None:
    """Run `sluice` with the arguments after the first, which names the file of results.

    The whole command is counted, or what a service does between two lines of standard input.
    """
    global _seen  # noqa: PLW0603 - the profile hook has no other place to write to
    out = Path(sys.argv.pop(1))
    whole = os.environ["TRIP"] == "whole"
    if whole:
        _seen = set()
    else:
        threading.Thread(target=_follow_orders, args=(out,), daemon=True).start()
    threading.setprofile(_note)
    sys.setprofile(_note)
    try:
        from sluice_cli.main import main  # noqa: PLC0415 - its imports are part of the command

        main()
    finally:
        sys.setprofile(None)
        if whole:
            _write(out, _seen or set())


def _note(frame: FrameType, event: str, _: object) -> None:
    if event == "call" and _seen is not None:
        _seen.add(frame.f_code)


def _follow_orders(out: Path) -> None:
    global _seen  # noqa: PLW0603 - as above
    sys.setprofile(None)
    for number, _ in enumerate(sys.stdin.buffer):
        if number % 2 == 0:
            _seen = set()
        else:
            seen, _seen = _seen or set(), None  # the other threads no longer add to it
            _write(out, seen)


def _write(out: Path, seen: set[CodeType]) -> None:
    found: dict[str, list[str]] = {}
    for code in [*seen]:
        path = Path(code.co_filename)
        if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] in _OTHERS:
            continue
        if code.co_name == "<module>" and code.co_names == ("__doc__",):
            continue  # a package's docstring
        functions = found.setdefault(str(path.relative_to(ROOT)), [])
        if not code.co_name.startswith("<") and not _is_class_body(code):
            functions.append(code.co_qualname)
    part = out.with_suffix(".part")
    part.write_text(json.dumps({name: sorted(found[name]) for name in sorted(found)}))
    part.rename(out)


def _is_class_body(code: CodeType) -> bool:
    return "__qualname__" in code.co_names and "__module__" in code.co_names


if __name__ == "__main__":
    counted_main()
