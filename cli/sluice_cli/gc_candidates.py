"""`sluice gc candidates`: what a plan names, and why; or why it does not name a blob."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from sluice_cli.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit, format_size, format_time
from sluice_gc.plan.candidate_views import (
    CandidateDetail,
    CandidatePage,
    ClauseFinding,
    PlanCandidate,
    days_text,
)
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.keys import parse_digest
from sluice_store import StoreMode, open_deployment

if TYPE_CHECKING:
    from rich.console import Console

LIMIT_MAX: Final = 500
_DIGEST_DIGITS: Final = 64


def candidates(
    plan_id: Annotated[str | None, Parameter(help="The plan; by default the newest.")] = None,
    /,
    *,
    sha256: Annotated[
        str,
        Parameter(help="Only blobs that begin with these digits; with all 64, everything of one."),
    ] = "",
    after: Annotated[int, Parameter(help="Pass over this many candidates.")] = 0,
    limit: Annotated[int, Parameter(help="Most candidates to list, up to 500.")] = 50,
    store: StoreUrl = STORE_DEFAULT,
    key_file: Path | None = None,
    trusted_keys: tuple[str, ...] = (),
    json: Json = False,
) -> int:
    """List the candidates of a plan with the clauses of each, or explain one blob.

    `--key-file` or `--trusted-keys` verify the signature of the plan. Exit with 1 if there is no
    such plan, or if the plan does not name the blob.
    """
    if not 1 <= limit <= LIMIT_MAX or after < 0:
        raise BadUsage(f"--limit must be 1 to {LIMIT_MAX} and --after at least 0, limit=`{limit}`")
    found = asyncio.run(_read(store, plan_id, sha256, (after, limit), key_file, trusted_keys))
    emit(found, as_json=json, human=lambda console: _draw(console, found, after))
    named = found is not None and bool(not isinstance(found, CandidateDetail) or found.candidates)
    return int((ExitCode.DONE if named else ExitCode.FOUND_WRONG).value)


async def _read(
    url: str,
    plan_id: str | None,
    sha256: str,
    part: tuple[int, int],
    key_file: Path | None,
    trusted_keys: tuple[str, ...],
) -> CandidatePage | CandidateDetail | None:
    from sluice_gc.plan.plan_candidates import read_candidate, read_candidates  # noqa: PLC0415 - quick help
    from sluice_gc.plan.plan_inputs import newest_plan_id  # noqa: PLC0415 - quick help
    from sluice_gc.signing_keys import load_trusted  # noqa: PLC0415 - quick help

    trusted = load_trusted(key_file or Path(), trusted_keys) if key_file or trusted_keys else None
    after, limit = part
    async with open_deployment(url, StoreMode.READ) as store:
        chosen = plan_id or await newest_plan_id(store)
        if len(sha256) == _DIGEST_DIGITS:
            try:
                digest = parse_digest(sha256)
            except ValueError as error:
                raise BadUsage(f"not lower-case hexadecimal digits, sha256=`{sha256}`") from error
            return await read_candidate(store, chosen, digest, trusted=trusted)
        return await read_candidates(
            store, chosen, after=after, limit=limit, prefix=sha256, trusted=trusted
        )


def _draw(console: "Console", found: CandidatePage | CandidateDetail | None, after: int) -> None:
    match found:
        case None:
            console.print("no such plan: it was removed or never made")
        case CandidatePage():
            _draw_page(console, found, after)
        case CandidateDetail():
            _draw_detail(console, found)


def _draw_page(console: "Console", page: CandidatePage, after: int) -> None:
    checked = "" if page.signature_checked else ", its signature is not verified (--key-file)"
    console.print(f"plan {page.plan_id}: {page.total} candidates{checked}")
    for one in page.candidates:
        _draw_candidate(console, one)
    if page.more:
        console.print(f"more: continue with --after {after + len(page.candidates)}")


def _draw_candidate(console: "Console", one: PlanCandidate) -> None:
    kind = "superseded" if one.superseded else "orphan"
    size, age = format_size(one.size_bytes), days_text(one.age_s)
    console.print(f"{one.sha256}  {size}, {age} old, {kind}\n  {one.key}")
    _draw_clauses(console, one.clauses)


def _draw_clauses(console: "Console", clauses: tuple[ClauseFinding, ...]) -> None:
    for one in clauses:
        console.print(f"    {one.clause:12} {one.state.replace('_', ' '):9} {one.found}")


def _draw_detail(console: "Console", found: CandidateDetail) -> None:
    console.print(f"blob {found.sha256} in plan {found.plan_id}, audit {found.audit_id}")
    for one in found.candidates:
        _draw_candidate(console, one)
    for proof in found.proofs:
        at = format_time(proof.proved_at_unix_ns)
        console.print(f"  {at} {proof.verdict}: version {proof.incarnation}\n  {proof.proof_key}")
        _draw_clauses(console, proof.clauses)
    if found.reason:
        console.print(f"  {found.reason}")
    for kept in found.kept:
        since = format_time(kept.last_modified_unix_ns)
        console.print(f"  version {kept.incarnation} of {since}, {format_size(kept.size_bytes)}")
        _draw_clauses(console, (kept.finding,))
