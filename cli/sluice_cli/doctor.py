"""`sluice doctor`: test the store's guarantees with races, and write the result into it.

With `--policies` it also tests that the bucket denies what each role must not do.
"""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit
from sluice_maintain.lake_state import read_lake_problems
from sluice_policies.settings import Settings, read_settings
from sluice_protocol.distribution import install_command
from sluice_protocol.errors import BadUsage, ExitCode, StoreDenied, StoreMisconfigured
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store import open_deployment
from sluice_store.doctor import (
    DoctorFinding,
    DoctorResult,
    Need,
    examine,
    seal_result,
    write_result,
)
from sluice_store.s3.settings import parse_s3_url
from sluice_store.url import read_disk_problem

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_policies.verify import Verification

PROBES_BYTES: Final = 1024 * 1024
"""Space that the probes and the result need."""

Endpoints = Annotated[
    tuple[str, ...],
    Parameter(
        name="--endpoint",
        negative="",
        help="Another URL of the same store, to race through as well; repeatable.",
    ),
]


def doctor(
    *,
    store: StoreUrl = STORE_DEFAULT,
    endpoint: Endpoints = (),
    policies: Path | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> int:
    """Test every guarantee that sluice needs of a store; gateways start only on a good result.

    Args:
        store: The store to test.
        endpoint: Other URLs of the same store.
        policies: Settings of the bucket's policies (docs/policies.md); test their denials too.
        dry_run: Test only; write no result.
        json: Print JSON for programs.

    Returns:
        0 if all guarantees for acceptance, deletion and locks, and all denials, are kept, and the
        tables of the lake contain what the queue has handed over; otherwise 1. The tables are not
        checked, and a line on stderr states so, if the credentials may not read them.
    """
    agreed = None if policies is None else _of_this_bucket(store, read_settings(policies))
    result, lake = asyncio.run(_examine((store, *endpoint), write=not dry_run))
    for problem in lake:
        sys.stderr.write(f"the lake is incomplete: {problem}\n")
    if agreed is None:
        emit(result, as_json=json, human=lambda console: _draw(console, store, result))
        return ExitCode.FOUND_WRONG.value if lake else _exit_code(result)
    from sluice_cli.policies_output import (  # noqa: PLC0415 - z3 is an extra
        draw_verification,
        verification_json,
    )

    denials = asyncio.run(_denials(store, agreed))
    found = {"store": result, "policies": verification_json(denials)}

    def draw(console: "Console") -> None:
        _draw(console, store, result)
        draw_verification(console, denials)

    emit(found, as_json=json, human=draw)
    return _exit_code(result) if denials.good and not lake else ExitCode.FOUND_WRONG.value


def _exit_code(result: DoctorResult) -> int:
    bad = any(result.broken(need) for need in (Need.ACCEPTANCE, Need.DELETION, Need.LOCK))
    return ExitCode.FOUND_WRONG.value if bad else ExitCode.DONE.value


def _of_this_bucket(url: str, settings: Settings) -> Settings:
    if not url.startswith("s3://"):
        raise BadUsage(f"--policies needs a bucket: use an s3:// store, store=`{url}`")
    where = parse_s3_url(url)
    given = f"{where.bucket}/{where.prefix}"
    wanted = f"{settings.bucket.name}/{settings.bucket.prefix}"
    if given != wanted:
        raise BadUsage(
            f"the policies are for another bucket or prefix, store=`{given}`, policies=`{wanted}`"
        )
    return settings


async def _denials(url: str, settings: Settings) -> "Verification":
    from sluice_policies.verify import verify_bucket  # noqa: PLC0415 - z3 is an extra

    return await verify_bucket(settings, parse_s3_url(url), SystemIds().ulid())


async def _examine(urls: tuple[str, ...], *, write: bool) -> tuple[DoctorResult, tuple[str, ...]]:
    """Return what the tests of the store found, and what is wrong with the lake."""
    for url in urls:
        problem = read_disk_problem(url, PROBES_BYTES)
        if problem:  # otherwise each promise would be reported as broken
            raise StoreMisconfigured("create", url, problem)
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(open_deployment(url, initialised=False)) for url in urls
        ]
        result = await examine(stores, urls, SystemIds())
        if write:
            await write_result(stores[0], result, seal_result(result), SystemClock())
        try:
            problems = await read_lake_problems(urls[0], stores[0])
        except StoreDenied as error:  # a role that changes the bucket need not read its data
            sys.stderr.write(f"the lake was not compared with the queue: {error}\n")
            return result, ()
        if problems is None:
            command = install_command("query")
            sys.stderr.write(f"the lake was not compared with the queue: run `{command}`\n")
        return result, problems or ()


def _draw(console: "Console", url: str, result: DoctorResult) -> None:
    for finding in result.findings:
        _draw_finding(console, finding)
    if not result.good:
        console.print(f"{url}: do not accept batches through this store")
    elif result.broken(Need.DELETION):
        console.print(f"{url}: good for acceptance; garbage collection will only plan")
    else:
        console.print(f"{url}: good for acceptance and deletion")


def _draw_finding(console: "Console", finding: DoctorFinding) -> None:
    mark = "kept  " if finding.kept else "BROKEN"
    console.print(f"{mark}  {finding.probe} ({finding.need}): {finding.promise}", markup=False)
    if finding.seen:
        console.print(f"        seen: {finding.seen}", markup=False)
    if not finding.kept:
        console.print(f"        cost: {finding.cost}", markup=False)
