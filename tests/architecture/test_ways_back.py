"""Every way back that `docs/recovery.md` promises has a test, and a metric that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "recovery.md"


def rows() -> list[list[str]]:
    """Return the cells of each row of the table of ways back."""
    section = PAGE.read_text().split("\n## Ways back\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_each_way_back_is_walked_by_a_test() -> None:
    assert len(rows()) >= 10
    for *_, test in rows():
        path, name = test.strip("`").split("::")
        assert f"def {name}(" in (ROOT / path).read_text(), test


def test_each_metric_of_a_way_back_exists() -> None:
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    for row in rows():
        names = re.findall(r"`(sluice_\w+)`", row[2])
        assert names or row[2].startswith("none"), row
        for name in names:
            assert f"| `{name.removesuffix('_total')}` |" in reference, name


def test_each_title_of_a_way_back_is_printed() -> None:
    texts = "".join(
        path.read_text()
        for name in ("console", "maintain", "cli")
        for path in (ROOT / name).rglob("*.py")
    )
    for row in rows():
        for title in re.findall(r'"([^"]+)"', row[1]):
            for part in title.split(" … "):
                assert part in texts, title
