"""The distribution has one name, and no page or message names another one to install."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from sluice_protocol.distribution import DISTRIBUTION, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_ANOTHER_PROJECT = re.compile(
    r"""(?<![\w./-])sluice\[[a-z]  # an extra
    | pip\W+install\b[^`\n]*[^`\n\w./-]sluice(?![\w./\[-])  # a command, also as a list of words
    | (?<![\w./-])sluice\ @\ |(?<![\w./-])sluice[=~]=  # a requirement
    | (?:version|requires|metadata|distribution)\(["']sluice["']\)  # what is installed
    """,
    re.VERBOSE,
)
"""The distribution `sluice` of the package index, which is not this project."""


def test_the_name_in_code_is_that_of_the_project() -> None:
    assert PROJECT["name"] == DISTRIBUTION


def test_extras_of_extras_exist() -> None:
    extras = PROJECT["optional-dependencies"]
    named = [Requirement(one) for row in extras.values() for one in row]
    own = [one for one in named if one.name.startswith("sluice")]
    assert {one.name for one in own} == {DISTRIBUTION}
    assert {extra for one in own for extra in one.extras} <= set(extras)


def test_no_text_installs_the_distribution_of_another_project() -> None:
    listed = subprocess.run(
        ("git", "grep", "--untracked", "-I", "--full-name", "-l", "-w", "sluice"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    here = str(Path(__file__).relative_to(ROOT))
    found = [
        f"{name}: {one[0]}"
        for name in listed
        if name != here
        for one in OF_ANOTHER_PROJECT.finditer((ROOT / name).read_text())
    ]
    assert "README.md" in listed
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "pip install sluice",
        "pip install 'sluice[up]'",
        "install sluice[query]",
        '("-m", "pip", "install", "sluice")',
        "sluice[up,s3] @ file:///x.whl",
        "sluice @ file:///x.whl",
        "sluice==0.1.0",
        'version("sluice")',
    ],
)
def test_the_pattern_finds_each_form(text: str) -> None:
    assert OF_ANOTHER_PROJECT.search(text)


@pytest.mark.parametrize(
    "text",
    [
        install_command("up"),
        "/opt/sluice/bin/pip install '.[gateway,doors,s3]'",
        "pip install '.[s3]' in `/opt/sluice`",
        "`pip install` of the wheel and `sluice up`",
        'aws_iam_role.sluice["reconciler"]',
        f"{DISTRIBUTION}[up] @ file:///x.whl",
    ],
)
def test_the_pattern_accepts_what_is_correct(text: str) -> None:
    assert not OF_ANOTHER_PROJECT.search(text)
