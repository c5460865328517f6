"""A watched program: a hang and an endless repetition are found, slowness is not a failure."""

import os
import sys
from pathlib import Path

import pytest
from support.maintain_processes import is_alive, wait_for
from support.watched_process import run_watched


def test_the_output_and_the_exit_code_are_returned(tmp_path: Path) -> None:
    words = ("sh", "-c", "cat; echo problem >&2; exit 3")
    done = run_watched(words, cwd=tmp_path, env=os.environ, stdin="given")
    assert (done.returncode, done.stdout, done.stderr) == (3, "given", "problem\n")


def test_a_program_that_waits_is_killed_with_those_that_it_started(tmp_path: Path) -> None:
    words = ("sh", "-c", "echo begun; sleep 600 & echo $! > child; wait")
    with pytest.raises(AssertionError, match=r"in 1 s\nbegun"):
        run_watched(words, cwd=tmp_path, env=os.environ, stalled_s=1)
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not is_alive(child), "the end of the child", wait_s=5)


def test_a_child_that_repeats_itself_is_killed(tmp_path: Path) -> None:
    """The CPU time of a child counts, not only that of the program."""
    words = ("sh", "-c", f"{sys.executable} -c 'while True: pass'; true")
    with pytest.raises(AssertionError, match="more than 1 s"):
        run_watched(words, cwd=tmp_path, env=os.environ, cpu_s_max=1)
