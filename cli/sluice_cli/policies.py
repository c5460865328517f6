"""`sluice policies`: render, lint, simulate, prove, diff, apply and verify bucket policies."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter
from rich.console import Console

from sluice_cli.options import Json
from sluice_cli.output import emit
from sluice_cli.policies_output import (
    changes_json,
    draw_changes,
    draw_verdicts,
    draw_verification,
    verdicts_json,
    verification_json,
)
from sluice_policies.evaluate import evaluate, request_for
from sluice_policies.lint import lint as lint_text
from sluice_policies.live_documents import DocumentChange, changes, read_live
from sluice_policies.live_documents import apply as apply_changes
from sluice_policies.model import canonical, document_json, parse_document
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.render import documents
from sluice_policies.render import render as render_all
from sluice_policies.settings import RoleName, Settings, Target
from sluice_policies.settings_file import read_settings
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.system_clock import SystemIds
from sluice_store.administration import Administration, open_administration
from sluice_store.s3.settings import S3Settings

if TYPE_CHECKING:
    from sluice_policies.verify import Verification

app = App(name="policies", help="Render, prove and apply bucket and IAM policies.")

SETTINGS_DEFAULT: Final = Path("policies.toml")

SettingsFile = Annotated[
    Path, Parameter(name="--settings", help="The settings file (docs/policies.md).")
]
TargetName = Annotated[Target, Parameter(name="--target", help="The dialect.")]
Endpoint = Annotated[
    str | None, Parameter(name="--endpoint", help="URL of the server; AWS's own by default.")
]
Profile = Annotated[
    str | None, Parameter(name="--profile", help="AWS profile of the deployer or auditor.")
]
CaBundle = Annotated[
    Path | None, Parameter(name="--ca-bundle", help="Certificate authorities to trust.")
]
BucketPolicy = Annotated[
    Path | None,
    Parameter(name="--bucket-policy", help="Take this bucket policy, not the rendered one."),
]


@app.command
def render(
    *,
    settings: SettingsFile = SETTINGS_DEFAULT,
    target: TargetName = Target.AWS,
    out: Annotated[Path | None, Parameter(help="Folder to write into; printed if none.")] = None,
    json: Json = False,
) -> int:
    """Writes the documents and templates of a target, and what it cannot express."""
    found = render_all(read_settings(settings), target)
    for name, text in found.files.items() if out is not None else ():
        path = (out or Path()) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def human(console: Console) -> None:
        for name, text in found.files.items():
            console.print(name if out is not None else f"--- {name}\n{text}", markup=False)
        for item in found.inexpressible:
            console.print(f"cannot express: {item.what}: {item.why}", markup=False)

    lost = [{"what": item.what, "why": item.why} for item in found.inexpressible]
    emit({"files": found.files, "cannot_express": lost}, as_json=json, human=human)
    return ExitCode.DONE.value


@app.command
def lint(
    *files: Path,
    settings: SettingsFile = SETTINGS_DEFAULT,
    target: TargetName = Target.AWS,
    json: Json = False,
) -> int:
    """Lints policy files, or what is rendered when no file is named.

    Returns:
        0 when nothing is wrong, 1 when there is a finding of any kind.
    """
    texts = _texts(files) if files else _rendered_texts(read_settings(settings), target)
    found = {name: lint_text(text) for name, text in texts.items()}

    def human(console: Console) -> None:
        for name, findings in found.items():
            for finding in findings:
                console.print(f"{name}: {finding}", markup=False)
            if not findings:
                console.print(f"{name}: nothing is wrong", markup=False)

    plain = {
        name: [
            {"rule": f.rule, "severity": f.severity.value, "where": f.where, "says": f.message}
            for f in findings
        ]
        for name, findings in found.items()
    }
    emit(plain, as_json=json, human=human)
    bad = any(found.values())
    return ExitCode.FOUND_WRONG.value if bad else ExitCode.DONE.value


def _texts(files: tuple[Path, ...]) -> dict[str, str]:
    try:
        return {str(path): path.read_text("utf-8") for path in files}
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(f"a policy file cannot be read: {error}") from error


def _rendered_texts(settings: Settings, target: Target) -> dict[str, str]:
    found = documents(policy_set(settings, target))
    return {name: canonical(document_json(document)) for name, document in found.items()}


def _policies(settings: Path, target: Target, bucket_policy: Path | None) -> PolicySet:
    found = policy_set(read_settings(settings), target)
    if bucket_policy is None:
        return found
    text = _texts((bucket_policy,))[str(bucket_policy)]
    return found.with_bucket(parse_document(text, str(bucket_policy)))


def _headers(texts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, found, value = text.partition(": ")
        if not found:
            raise BadUsage(f"a header is `Name: value`, header=`{text}`")
        yield name, value


@app.command
def simulate(
    *,
    principal: Annotated[str, Parameter(help="A role's name, an ARN or user, or `anonymous`.")],
    action: Annotated[str, Parameter(help="s3:PutObject, say.")],
    key: Annotated[str | None, Parameter(help="The object; the bucket if none.")] = None,
    header: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="`If-None-Match: *`, or a condition key by its own name."),
    ] = (),
    settings: SettingsFile = SETTINGS_DEFAULT,
    target: TargetName = Target.AWS,
    bucket_policy: BucketPolicy = None,
    json: Json = False,
) -> int:
    """Judges one request and names the deciding statement.

    Returns:
        0 when it is allowed, 1 when it is denied, 2 when it cannot be decided.
    """
    policies = _policies(settings, target, bucket_policy)
    request = request_for(policies, principal, action, key, dict(_headers(header)))
    decision = evaluate(policies, request)
    word = "allow" if decision.allowed else "deny"

    def human(console: Console) -> None:
        about = f": {decision.reason}" if decision.reason else ""
        console.print(f"{word} by {decision.sid}{about}", markup=False)

    found = {"decision": word, "statement": decision.sid, "reason": decision.reason}
    emit(found, as_json=json, human=human)
    return ExitCode.DONE.value if decision.allowed else ExitCode.FOUND_WRONG.value


@app.command
def prove(
    *,
    settings: SettingsFile = SETTINGS_DEFAULT,
    target: TargetName = Target.AWS,
    bucket_policy: BucketPolicy = None,
    json: Json = False,
) -> int:
    """Proves every required property over every caller, key and header.

    Returns:
        0 when all hold, 1 when one is broken or cannot be told.
    """
    from sluice_policies.prove import prove as prove_all  # noqa: PLC0415 - z3 is an extra

    verdicts = prove_all(_policies(settings, target, bucket_policy))
    emit(verdicts_json(verdicts), as_json=json, human=lambda c: draw_verdicts(c, verdicts))
    good = all(verdict.holds for verdict in verdicts)
    return ExitCode.DONE.value if good else ExitCode.FOUND_WRONG.value


def _where(
    settings: Settings, endpoint: str | None, profile: str | None, ca_bundle: Path | None
) -> S3Settings:
    return S3Settings(
        bucket=settings.bucket.name,
        endpoint=endpoint,
        region=settings.bucket.region,
        profile=profile,
        ca_bundle=None if ca_bundle is None else str(ca_bundle),
    )


async def _live_changes(
    settings: Settings, target: Target, where: S3Settings
) -> tuple[DocumentChange, ...]:
    async with open_administration(where) as admin:
        return changes(settings, target, await read_live(settings, target, admin))


@app.command
def diff(
    *,
    settings: SettingsFile = SETTINGS_DEFAULT,
    target: TargetName = Target.AWS,
    endpoint: Endpoint = None,
    profile: Profile = None,
    ca_bundle: CaBundle = None,
    json: Json = False,
) -> int:
    """Shows how the live documents differ from those rendered.

    Returns:
        0 when nothing differs, else 1.
    """
    chosen = read_settings(settings)
    where = _where(chosen, endpoint, profile, ca_bundle)
    found = asyncio.run(_live_changes(chosen, target, where))
    emit(changes_json(found), as_json=json, human=lambda console: draw_changes(console, found))
    return ExitCode.FOUND_WRONG.value if found else ExitCode.DONE.value


def _confirmed(found: tuple[DocumentChange, ...], *, yes: bool) -> bool:
    if yes or not found:
        return True
    if not sys.stdin.isatty():
        raise BadUsage("apply changes a live bucket: look at the diff, then say --yes")
    draw_changes(Console(highlight=False, soft_wrap=True, stderr=True), found)
    sys.stderr.write(f"apply {len(found)} changes, in this order? [yes/no] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() == "yes"


@app.command
def apply(
    *,
    settings: SettingsFile = SETTINGS_DEFAULT,
    target: TargetName = Target.AWS,
    endpoint: Endpoint = None,
    profile: Profile = None,
    ca_bundle: CaBundle = None,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask.")] = False,
    json: Json = False,
) -> int:
    """Applies what differs, in a safe order, reads it back and proves what is live.

    Returns:
        0 when all stands as rendered and is proved, 1 when refused by the person or not proved.
    """
    chosen = read_settings(settings)
    render_all(chosen, target)
    where = _where(chosen, endpoint, profile, ca_bundle)
    found = asyncio.run(_live_changes(chosen, target, where))
    if not _confirmed(found, yes=yes):
        return ExitCode.FOUND_WRONG.value
    proved = asyncio.run(_apply(chosen, target, where, found))

    def human(console: Console) -> None:
        for change in found:
            console.print(f"applied: {change.name}", markup=False)
        text = "the live documents are proved" if proved else "the live documents are NOT proved"
        console.print(f"{len(found)} changes; {text}")

    names = [change.name for change in found]
    emit({"applied": names, "proved": proved}, as_json=json, human=human)
    return ExitCode.DONE.value if proved else ExitCode.FOUND_WRONG.value


async def _apply(
    settings: Settings, target: Target, where: S3Settings, found: tuple[DocumentChange, ...]
) -> bool:
    from sluice_policies.verify import verdicts_on  # noqa: PLC0415 - z3 is an extra

    async with open_administration(where) as admin:
        await apply_changes(settings, target, admin, found)
        live = await read_live(settings, target, admin)
    verdicts = verdicts_on(settings, target, live)
    return bool(verdicts) and all(verdict.holds for verdict in verdicts)


@app.command
def verify(
    *,
    settings: SettingsFile = SETTINGS_DEFAULT,
    target: TargetName = Target.AWS,
    endpoint: Endpoint = None,
    profile: Profile = None,
    ca_bundle: CaBundle = None,
    json: Json = False,
) -> int:
    """Reads a live bucket back, proves its documents, and tries them with each role.

    Returns:
        0 when all is as it must be, else 1.
    """
    chosen = read_settings(settings)
    where = _where(chosen, endpoint, profile, ca_bundle)
    found = asyncio.run(verify_bucket(chosen, target, where))
    emit(verification_json(found), as_json=json, human=lambda c: draw_verification(c, found))
    return ExitCode.DONE.value if found.good else ExitCode.FOUND_WRONG.value


async def verify_bucket(settings: Settings, target: Target, where: S3Settings) -> "Verification":
    """Proves the documents of a live bucket, and tries them with each role that has a profile.

    Raises:
        StoreError: The bucket cannot be read back.
    """
    from sluice_policies.verify import verify as verify_live  # noqa: PLC0415 - z3 is an extra

    def open_role(name: RoleName) -> AbstractAsyncContextManager[Administration] | None:
        profile = settings.role(name).profile
        if not profile:
            return None
        return open_administration(
            S3Settings(
                bucket=where.bucket,
                endpoint=where.endpoint,
                region=where.region,
                profile=profile,
                ca_bundle=where.ca_bundle,
            )
        )

    async with open_administration(where) as admin:
        return await verify_live(settings, target, admin, open_role, SystemIds().ulid())
