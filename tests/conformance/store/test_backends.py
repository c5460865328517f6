"""The conformance suite over every kind of store that needs no server."""

from pathlib import Path

import pytest
from support.store_conformance import CHECKS, assert_conforms

from sluice_protocol.errors import BadUsage
from sluice_store import StoreMode, open_store
from sluice_store.conformance import Check
from sluice_store.url import BACKENDS, Backend, check_store_url, find_backend

SCRATCH = [one for one in BACKENDS if one.scratch]


@pytest.mark.parametrize("backend", SCRATCH, ids=lambda one: one.scheme)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_store_keeps_every_promise_of_the_port(
    check: Check, backend: Backend, tmp_path: Path
) -> None:
    url = backend.scratch.format(folder=tmp_path)
    async with open_store(url, StoreMode.CREATE) as store:
        await assert_conforms(backend.module.partition(".")[0], check, store, "place/")


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda one: one.scheme)
def test_the_form_of_each_url_is_checked(backend: Backend) -> None:
    form = backend.form.partition("?")[0]
    assert find_backend(form) == backend
    check_store_url(form)
    with pytest.raises(BadUsage, match=f"use .*{form}"):
        check_store_url("other://place")
    with pytest.raises(BadUsage, match="invalid store URL"):
        check_store_url(f"{backend.scheme}://")
