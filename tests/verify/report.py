"""Write the part of docs/verification.md about runs from the result files in `results`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from deploy.page_sections import markdown_table, split_section

PAGE: Final = Path(__file__).parents[2] / "docs" / "verification.md"
RESULTS: Final = Path(__file__).parent / "results"
BEGIN: Final = "<!-- written by `make verify WRITE=1` from tests/verify/results -->"
END: Final = "<!-- end of runs -->"


def store_result(result: dict[str, Any]) -> None:
    """Write the result of a run, replace that of the same seed and duration, and write the page."""
    RESULTS.mkdir(exist_ok=True)
    name = f"{result['store']}-{result['minutes']:g}-{result['seed']}.json"
    (RESULTS / name).write_text(json.dumps(result, indent=2) + "\n")
    before, _, after = split_section(PAGE.read_text(), BEGIN, END)
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    PAGE.write_text(f"{before}\n\n{section(results)}\n{after}")


def section(results: list[dict[str, Any]]) -> str:
    """Return the tables of runs and of faults."""
    names = tuple(f"{one['store']}, {one['minutes']:g} min, seed {one['seed']}" for one in results)
    faults = list(dict.fromkeys(fault for one in results for fault in one["firings"]))
    firings = (
        (f"`{fault}`", *(one["firings"].get(fault, "no") for one in results)) for fault in faults
    )
    counts = [one["verdicts"][-1]["operations"] for one in results]
    passed = sum(count for count, one in zip(counts, results, strict=True) if one["passed"])
    minutes = sum(one["minutes"] for one in results)
    whole = sum(one["seconds"] for one in results) / 60
    totals = (
        f"These runs took {whole:.0f} minutes from start to verdict. Faults came for at least"
        f" {minutes:g} of them, and longer where each had not happened once by then. They have"
        f" {sum(counts):,} operations, {passed:,} of them in passed runs.\n"
    )
    return "\n".join(
        (
            totals,
            markdown_table(
                ("run", "day", "revision", "operations", "unknown", "identities", "answers",
                 "faults", "violations", "result"),
                _rows(names, results),
            ),
            markdown_table(("firings of each fault", *names), firings),
        )
    )  # fmt: skip


def _rows(names: tuple[str, ...], results: list[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    for name, one in zip(names, results, strict=True):
        facts = one["verdicts"][-1]
        yield (
            name,
            one["began"][:10],
            f"`{one['revision']}`",
            facts["operations"],
            facts["unknown"],
            facts["identities"],
            facts["answers"],
            sum(one["firings"].values()),
            sum(verdict["broken"] for verdict in one["verdicts"]),
            "passed" if one["passed"] else "FAILED",
        )
