"""The previous release, checked out once for all tests of an upgrade."""

import pytest
from support.versions import Version, check_out_previous


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return check_out_previous(tmp_path_factory.mktemp("old"))
