"""The nightly run summarises each stage, whatever its outcome."""

from datetime import UTC, datetime

from deploy.nightly import BEGIN, END, PAGE, StageResult, render_summary, summary_of, updated_page


def test_the_closing_line_of_pytest_is_the_summary() -> None:
    output = "....\n===== 12 passed, 2 skipped in 3.21s =====\nmake: Leaving\n"
    assert summary_of(output) == "12 passed, 2 skipped"


def test_a_failure_is_in_the_summary() -> None:
    assert summary_of("1 failed, 11 passed in 0:01:02\n") == "1 failed, 11 passed"


def test_a_stage_without_tests_shows_its_last_line() -> None:
    assert summary_of("Contracts: 16 kept, 0 broken.\n\n") == "Contracts: 16 kept, 0 broken."
    assert summary_of("") == "no output"


def test_a_failed_stage_is_marked() -> None:
    result = StageResult(name="test", passed=False, seconds=61.0, summary="1 failed")
    page = render_summary([result], revision="abc", at=datetime(2026, 1, 2, tzinfo=UTC))
    assert "| `make test` | FAILED | 1 min 1 s | 1 failed |" in page


def test_the_last_run_is_replaced_and_the_rest_of_the_page_stays() -> None:
    page = f"before\n{BEGIN}\n\nold\n{END}\nafter\n"
    assert updated_page(page, "new\n") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"


def test_the_page_has_a_place_for_the_last_run() -> None:
    text = PAGE.read_text()
    assert text.count(BEGIN) == 1
    assert text.index(END) > text.index(BEGIN)
