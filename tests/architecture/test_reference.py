"""The generated pages of the reference are those that the code renders now."""

import pytest
from deploy.reference import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_current(name: str) -> None:
    page = (FOLDER / name).read_text(encoding="utf-8")
    assert page == PAGES[name](), "run `make docs`"


def test_there_is_no_other_page() -> None:
    assert {one.name for one in FOLDER.iterdir()} == set(PAGES)


def test_the_pages_describe_what_they_list() -> None:
    commands = (FOLDER / "commands.md").read_text(encoding="utf-8")
    assert "| `--gc.execute-only` | `SLUICE_MAINTAIN_GC_EXECUTE_ONLY` | `False` |" in commands
    assert "`GET /v1/fields/values`" in (FOLDER / "http.md").read_text(encoding="utf-8")
    metrics = (FOLDER / "metrics.md").read_text(encoding="utf-8")
    assert "| `sluice_accepts` | counter | `outcome` |" in metrics
    assert "| `sluice_agent_answers` | counter | `reaction`, `reason` |" in metrics
