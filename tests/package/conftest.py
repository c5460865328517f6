"""The wheel, built once for all tests of the package."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.local_deployment import clean_environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    uv = Path(sys.executable).with_name("uv")
    subprocess.run(
        [uv, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT],
        cwd=folder,
        env=clean_environment(),
        check=True,
        timeout=900,
    )
    (built,) = folder.glob("*.whl")
    return built
