"""A run of tests continues after one of its processes ended."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
FILE = """
import os

import pytest


@pytest.mark.parametrize("number", range(6))
def test_one(number):
    if number in {ENDING}:
        os._exit(1)
"""


def test_a_test_that_ends_its_process_runs_once(tmp_path: Path) -> None:
    """The others run in another process, and the result names each test that ended one."""
    for name, ending in (("a", "(0, 3)"), ("b", "(0, 5)"), ("c", "()")):
        (tmp_path / f"test_{name}.py").write_text(FILE.replace("{ENDING}", ending))
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 60\n")
    words = ("-p", "conftest", "-n", "2", "--dist", "loadfile", "--max-worker-restart", "6")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 failed, 14 passed" in done.stdout, done.stdout
    assert done.stdout.count("replacing crashed worker") == 4
    for name in (
        "test_a.py::test_one[0]",
        "test_a.py::test_one[3]",
        "test_b.py::test_one[0]",
        "test_b.py::test_one[5]",
    ):
        assert f"crashed while running '{name}'" in done.stdout
