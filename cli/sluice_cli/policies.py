"""`sluice policies`: render, lint, simulate, prove, compare, apply and verify bucket policies."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from sluice_cli.policies_output import (
    changes_json,
    draw_changes,
    draw_denials,
    draw_findings,
    draw_verdicts,
    draw_verification,
    findings_json,
    verdicts_json,
    verification_json,
)
from sluice_cli.shell.operator import is_confirmed
from sluice_cli.shell.options import Json
from sluice_cli.shell.output import emit
from sluice_policies.denials import check_role
from sluice_policies.evaluate import evaluate, request_for
from sluice_policies.lint import lint as lint_text
from sluice_policies.live_documents import (
    DocumentChange,
    bucket_of,
    read_changes,
    read_effective_policies,
)
from sluice_policies.model import identity_document, load_json, parse_document
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.render import BUCKET_POLICY, document_texts
from sluice_policies.render import render as render_all
from sluice_policies.settings import RoleName, Settings, Target, read_settings
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.system_clock import SystemIds

if TYPE_CHECKING:
    from rich.console import Console

app = App(name="policies", help="Render, prove and apply bucket and IAM policies.")

SETTINGS_DEFAULT: Final = Path("policies.toml")

SettingsFile = Annotated[
    Path, Parameter(name="--settings", help="The settings file (docs/policies.md).")
]
Documents = Annotated[
    Path | None,
    Parameter(
        name="--documents",
        help="Use the policies and the lifecycle in this folder, named as `render --out` writes"
        " them, instead of the rendered ones.",
    ),
]
_LIFECYCLE: Final = "lifecycle.json"


@app.command
def render(
    *,
    settings: SettingsFile = SETTINGS_DEFAULT,
    out: Annotated[
        Path | None, Parameter(help="Directory to write to; default: print the files.")
    ] = None,
    json: Json = False,
) -> int:
    """Write the documents and templates of a target, and what it cannot express."""
    found = render_all(read_settings(settings))
    for name, text in found.files.items() if out is not None else ():
        path = (out or Path()) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def human(console: "Console") -> None:
        for name, text in found.files.items():
            console.print(name if out is not None else f"--- {name}\n{text}", markup=False)
        for item in found.inexpressible:
            console.print(f"cannot express: {item.what}: {item.why}", markup=False)

    lost = [{"what": item.what, "why": item.why} for item in found.inexpressible]
    emit({"files": found.files, "cannot_express": lost}, as_json=json, human=human)
    return ExitCode.DONE.value


@app.command
def lint(
    *files: Annotated[Path, Parameter(help="Policy files to lint.")],
    settings: SettingsFile = SETTINGS_DEFAULT,
    json: Json = False,
) -> int:
    """Lint policy files, or the rendered documents if no file is named.

    Returns:
        0 if there is no finding, otherwise 1.
    """
    unset = settings == SETTINGS_DEFAULT and not settings.exists()
    chosen = None if files and unset else read_settings(settings)
    if files or chosen is None:
        texts = {str(path): _read_policy(path) for path in files}
    else:
        texts = document_texts(policy_set(chosen, chosen.target))
    account = None if chosen is None or chosen.target is not Target.AWS else chosen.bucket.account
    found = {name: lint_text(text, account) for name, text in texts.items()}
    emit(findings_json(found), as_json=json, human=lambda console: draw_findings(console, found))
    return _exit_code(good=not any(found.values()))


def _exit_code(*, good: bool) -> int:
    return ExitCode.DONE.value if good else ExitCode.FOUND_WRONG.value


def _read_policy(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadUsage(
            f"cannot read policy file: {reason}; correct its path, path=`{path}`"
        ) from error


def _policies(settings: Path, documents: Path | None) -> PolicySet:
    """Return the rendered documents, with those that the operator edited in their place."""
    chosen = read_settings(settings)
    found = policy_set(chosen, chosen.target)
    for path in () if documents is None else _edited(documents, chosen):
        text = _read_policy(path)
        if path.stem == BUCKET_POLICY:
            found = found.with_bucket(parse_document(text, str(path)))
        elif path.name != _LIFECYCLE:
            role = RoleName(path.stem.removeprefix("role-"))
            found = found.with_identity(role, identity_document(text, str(path)))
    return found


def _edited(folder: Path, settings: Settings) -> Iterator[Path]:
    """Yield the policies and the lifecycle of a folder; refuse a file that would be ignored."""
    if not folder.is_dir():
        raise BadUsage(f"no such folder: name one that `render --out` wrote, path=`{folder}`")
    rendered = render_all(settings).files
    for path in sorted(folder.glob("*.json")):
        if path.name not in rendered:
            raise BadUsage(f"no document of target {settings.target} has this name, path=`{path}`")
        if path.stem == BUCKET_POLICY or path.stem.startswith("role-") or path.name == _LIFECYCLE:
            yield path
        elif _read_policy(path) != rendered[path.name]:
            raise BadUsage(f"only policies and the lifecycle may be edited, path=`{path}`")


def _headers(texts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, found, value = text.partition(": ")
        if not found:
            raise BadUsage(f"header is not of the form `Name: value`, header=`{text}`")
        yield name, value


@app.command
def simulate(
    *,
    principal: Annotated[str, Parameter(help="A role, an ARN or user, a service, or `anonymous`.")],
    action: Annotated[str, Parameter(help="For example s3:PutObject.")],
    key: Annotated[str | None, Parameter(help="The object; default: the bucket.")] = None,
    header: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="`If-None-Match: *`, or a condition key by its own name."),
    ] = (),
    settings: SettingsFile = SETTINGS_DEFAULT,
    documents: Documents = None,
    json: Json = False,
) -> int:
    """Evaluate one request and name the deciding statement.

    Returns:
        0 if it is allowed, 1 if it is denied, 2 if it cannot be decided.
    """
    policies = _policies(settings, documents)
    request = request_for(policies, principal, action, key, dict(_headers(header)))
    decision = evaluate(policies, request)
    word = "allow" if decision.allowed else "deny"

    def human(console: "Console") -> None:
        about = f": {decision.reason}" if decision.reason else ""
        console.print(f"{word} by {decision.sid}{about}", markup=False)

    found = {"decision": word, "statement": decision.sid, "reason": decision.reason}
    emit(found, as_json=json, human=human)
    return _exit_code(good=decision.allowed)


@app.command
def prove(
    *,
    settings: SettingsFile = SETTINGS_DEFAULT,
    documents: Documents = None,
    json: Json = False,
) -> int:
    """Prove every required property for every caller, key and header.

    Returns:
        0 if all are proved, 1 if one is violated or cannot be decided.
    """
    from sluice_policies.prove import all_proved  # noqa: PLC0415 - z3 is an extra
    from sluice_policies.prove import prove as prove_all  # noqa: PLC0415

    policies = _policies(settings, documents)
    lifecycle = None if documents is None else documents / _LIFECYCLE
    rules = None
    if lifecycle is not None and lifecycle.exists():
        rules = load_json(_read_policy(lifecycle), str(lifecycle))
    verdicts = prove_all(policies, rules)
    emit(verdicts_json(verdicts), as_json=json, human=lambda c: draw_verdicts(c, verdicts))
    return _exit_code(good=all_proved(verdicts))


@app.command
def denials(
    *,
    role: Annotated[str, Parameter(help="Only denials of this role; `other` for any other.")] = "",
    action: Annotated[str, Parameter(help="Only denials of this action.")] = "",
    live: Annotated[
        bool, Parameter(negative="", help="Prove the documents of the live bucket.")
    ] = False,
    settings: SettingsFile = SETTINGS_DEFAULT,
    documents: Documents = None,
    json: Json = False,
) -> int:
    """List each request that must be denied, with the statement that denies it and the proof.

    Returns:
        0 if all are denied, otherwise 1.
    """
    from sluice_policies.prove_denials import prove_denials  # noqa: PLC0415 - z3 is an extra

    if live and documents is not None:
        raise BadUsage("--live reads the documents of the bucket: remove --documents, or --live")
    if live:
        chosen = read_settings(settings)
        policies = asyncio.run(read_effective_policies(chosen))
    else:
        policies = _policies(settings, documents)
    found = prove_denials(policies).matching(check_role(role), action)
    emit(found, as_json=json, human=lambda console: draw_denials(console, found))
    return _exit_code(good=found.denied == len(found.denials))


@app.command
def diff(
    *,
    settings: SettingsFile = SETTINGS_DEFAULT,
    json: Json = False,
) -> int:
    """Show the differences between the live and the rendered documents.

    Returns:
        0 if nothing differs, otherwise 1.
    """
    chosen = read_settings(settings)
    found = asyncio.run(read_changes(chosen))
    emit(changes_json(found), as_json=json, human=lambda console: draw_changes(console, found))
    return _exit_code(good=not found)


def _confirmed(found: tuple[DocumentChange, ...], *, yes: bool) -> bool:
    if not found:
        return True
    if not yes and sys.stdin.isatty():
        from rich.console import Console

        draw_changes(Console(highlight=False, soft_wrap=True, stderr=True), found)
    return is_confirmed(
        f"apply {len(found)} changes, in this order?",
        yes=yes,
        refusal="apply changes a live bucket; check `sluice policies diff`, then use --yes",
    )


@app.command
def apply(
    *,
    settings: SettingsFile = SETTINGS_DEFAULT,
    yes: Annotated[bool, Parameter(negative="", help="Apply without confirmation.")] = False,
    json: Json = False,
) -> int:
    """Apply the differences in a safe order, read them back, and prove the live documents.

    Returns:
        0 if the live documents are proved, 1 if the operator declines or they are not proved.
    """
    from sluice_policies.verify import apply_and_prove  # noqa: PLC0415 - z3 is an extra

    chosen = read_settings(settings)
    render_all(chosen)
    found = asyncio.run(read_changes(chosen))
    if not _confirmed(found, yes=yes):
        return ExitCode.FOUND_WRONG.value
    proved = asyncio.run(apply_and_prove(chosen, found))

    def human(console: "Console") -> None:
        for change in found:
            console.print(f"applied: {change.name}", markup=False)
        text = "the live documents are proved" if proved else "the live documents are NOT proved"
        console.print(f"{len(found)} changes; {text}")

    names = [change.name for change in found]
    emit({"applied": names, "proved": proved}, as_json=json, human=human)
    return _exit_code(good=proved)


@app.command
def verify(
    *,
    settings: SettingsFile = SETTINGS_DEFAULT,
    json: Json = False,
) -> int:
    """Compare and prove the live documents, and send probes with each role.

    Returns:
        0 if every check passes, otherwise 1.
    """
    from sluice_policies.verify import verify_bucket  # noqa: PLC0415 - z3 is an extra

    chosen = read_settings(settings)
    found = asyncio.run(verify_bucket(chosen, bucket_of(chosen), SystemIds().ulid()))
    emit(verification_json(found), as_json=json, human=lambda c: draw_verification(c, found))
    return _exit_code(good=found.good)
