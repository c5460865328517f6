"""The nightly run summarises each stage, whatever its outcome."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from deploy import nightly
from deploy.nightly import BEGIN, END, PAGE, STAGES, StageResult, main, summary_of, updated_page

from sluice_protocol.errors import BadUsage
from sluice_protocol.system_clock import SystemClock

DAY = datetime(2026, 1, 2, tzinfo=UTC)


def test_the_closing_line_of_pytest_is_the_summary() -> None:
    output = "....\n===== 12 passed, 2 skipped in 3.21s =====\nmake: Leaving\n"
    assert summary_of(output) == "12 passed, 2 skipped"


def test_a_failure_is_in_the_summary() -> None:
    assert summary_of("1 failed, 11 passed in 0:01:02\n") == "1 failed, 11 passed"


def test_a_stage_without_tests_shows_its_last_line() -> None:
    assert summary_of("Contracts: 16 kept, 0 broken.\n\n") == "Contracts: 16 kept, 0 broken."
    assert summary_of("") == "no output"


def test_lines_of_make_are_no_summary() -> None:
    output = "all checks passed\nmake[1]: Leaving directory '/x'\nmake: *** [test] Error 1\n"
    assert summary_of(output) == "all checks passed"


def test_the_commands_that_the_demonstration_shows_at_its_end_are_no_summary() -> None:
    assert summary_of("all checks passed:\n\n  sluice console --store URL\n") == "all checks passed"


def row_of(name: str, *, passed: bool = True, summary: str = "12 passed") -> str:
    result = StageResult(name=name, passed=passed, seconds=119.6, summary=summary)
    return result.row(revision="abc", at=DAY)


def test_a_failed_stage_is_marked() -> None:
    row = row_of("test", passed=False, summary="1 failed")
    assert row == "| `make test` | FAILED | 2026-01-02 | `abc` | 2 min 0 s | 1 failed |"


def test_a_stage_replaces_its_own_row_and_the_rest_of_the_page_stays() -> None:
    page = f"before\n{BEGIN}\n\nNo run yet.\n\n{END}\nafter\n"
    for row in (row_of("test-long"), row_of("test", summary="old"), row_of("test", summary="new")):
        page = updated_page(page, row)
    before, rows, after = page[:7], page.splitlines()[5:7], page[-7:]
    assert (before, after) == ("before\n", "\nafter\n")
    assert rows == [row_of("test", summary="new"), row_of("test-long")]
    assert "old" not in page


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that runs in place of make."""
    script = tmp_path / "make"
    script.touch(mode=0o755)
    monkeypatch.setattr(nightly, "find_program", lambda name: str(script))
    return script


def test_a_process_that_outlives_its_target_does_not_hold_the_run(make: Path) -> None:
    make.write_text("#!/bin/sh\nsleep 60 &\necho 3 passed\n")
    found = nightly.run_stage("test", SystemClock())
    assert (found.passed, found.summary) == (True, "3 passed")
    assert found.seconds < 30


def test_a_target_above_its_time_is_killed_and_failed(
    make: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make.write_text("#!/bin/sh\necho $$\nsleep 600\n")
    monkeypatch.setattr(nightly, "STAGE_S_MAX", 0.1)
    found = nightly.run_stage("test", SystemClock())
    assert (found.passed, found.summary) == (False, "killed after 0.1 s")
    assert found.seconds < 30


def page_of(*rows: str) -> str:
    page = f"{BEGIN}{END}"
    for row in rows:
        page = updated_page(page, row)
    return page


def test_the_page_states_that_every_target_passed_on_one_revision() -> None:
    rows = [row_of(name) for name in STAGES]
    assert f"All {len(STAGES)} targets passed on `abc`, in {2 * len(STAGES)} minutes.\n" in page_of(
        *rows
    )


def test_the_page_names_targets_that_failed_or_were_not_run_on_the_revision() -> None:
    """A row of an older revision proves nothing about this one."""
    rows = [row_of(name) for name in STAGES]
    older = [row.replace("`abc`", "`old+changes`") for row in rows]
    found = page_of(*older, *rows[2:], row_of("demo", passed=False))
    assert "\nNot all targets passed on `abc`: failed: demo; not run on it: check, test.\n" in found
    assert found.count("Not all targets") == 1
    assert f"All {len(STAGES)} targets passed on `abc`" in page_of(*older, *rows)


def test_a_page_without_a_section_is_refused() -> None:
    with pytest.raises(BadUsage, match="it has no marks"):
        updated_page(f"text {END}", row_of("test"))


def test_a_summary_cannot_add_a_column() -> None:
    page = updated_page(f"{BEGIN}{END}", row_of("test", summary="a | b"))
    assert row_of("test", summary="a | b") in page
    assert "a \\| b |" in page


def test_an_unknown_target_is_refused_before_anything_runs() -> None:
    with pytest.raises(BadUsage, match=r"unknown target: use check test .*target=`tests`"):
        main(["--write", STAGES[0], "tests"])


def test_the_page_has_a_place_for_the_last_run() -> None:
    text = PAGE.read_text()
    assert text.count(BEGIN) == 1
    assert text.index(END) > text.index(BEGIN)
