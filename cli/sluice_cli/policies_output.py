"""Output of `sluice policies`: JSON values for programs, and lines for operators."""

from typing import TYPE_CHECKING

from sluice_policies.denials import DenialOutcome, DenialReport, describe_denial
from sluice_policies.lint import LintFinding
from sluice_policies.live_documents import DocumentChange
from sluice_policies.probes import ProbeOutcome

if TYPE_CHECKING:
    from rich.console import Console

    # They need z3, which is an extra.
    from sluice_policies.prove import Verdict
    from sluice_policies.verify import Verification


def findings_json(findings: dict[str, tuple[LintFinding, ...]]) -> dict[str, list[dict[str, str]]]:
    """Return the findings of each file as JSON."""
    return {
        name: [
            {"rule": f.rule, "severity": f.severity.value, "where": f.where, "says": f.message}
            for f in found
        ]
        for name, found in findings.items()
    }


def draw_findings(console: "Console", findings: dict[str, tuple[LintFinding, ...]]) -> None:
    """Print one line for each finding, and one for each file without a finding."""
    for name, found in findings.items():
        for finding in found:
            console.print(f"{name}: {finding}", markup=False)
        if not found:
            console.print(f"{name}: no findings", markup=False)


def verdicts_json(verdicts: "tuple[Verdict, ...]") -> list[dict[str, object]]:
    """Return verdicts as JSON."""
    return [
        {
            "property": verdict.property.name,
            "says": verdict.property.description,
            "holds": verdict.holds,
            "counterexample": _counterexample(verdict),
        }
        for verdict in verdicts
    ]


def _counterexample(verdict: "Verdict") -> str | None:
    if verdict.counterexample is not None:
        return str(verdict.counterexample)
    return verdict.unknown or None


def draw_verdicts(console: "Console", verdicts: "tuple[Verdict, ...]") -> None:
    """Print one line for each property, and the request that violates it."""
    for verdict in verdicts:
        mark = "proved" if verdict.holds else "BROKEN"
        item = verdict.property
        console.print(f"{mark}  {item.name}: {item.description}", markup=False)
        if not verdict.holds:
            console.print(f"        {_counterexample(verdict)}", markup=False)
    proved = sum(verdict.holds for verdict in verdicts)
    console.print(f"{proved} of {len(verdicts)} properties proved")


def draw_denials(console: "Console", report: DenialReport) -> None:
    """Print each required denial, with what denies it or a request that is allowed."""
    marks = {DenialOutcome.DENIED: "denied   ", DenialOutcome.ALLOWED: "ALLOWED  "}
    for one in report.denials:
        mark = marks.get(one.outcome, "UNDECIDED")
        console.print(f"{mark}  {describe_denial(one)}", markup=False)
        for statement in one.statements:
            about = f": {statement.reason}" if statement.reason else ""
            console.print(
                f"           by {statement.document} {statement.sid}{about}", markup=False
            )
        for text in (one.proof, one.example):
            if text:
                console.print(f"           {text}", markup=False)
        if one.allowed_by:
            console.print(f"           allowed by {one.allowed_by}", markup=False)
        if one.missing:
            console.print(
                f"           missing or changed: {', '.join(one.missing)}; see"
                " `sluice policies diff`",
                markup=False,
            )
    console.print(f"{report.denied} of {len(report.denials)} required denials proved")


def changes_json(changes: tuple[DocumentChange, ...]) -> list[dict[str, str]]:
    """Return changes as JSON."""
    return [{"name": change.name, "diff": change.unified()} for change in changes]


def draw_changes(console: "Console", changes: tuple[DocumentChange, ...]) -> None:
    """Print the differences, in the order in which they would be applied."""
    for change in changes:
        console.print(change.unified(), markup=False)
    console.print(f"{len(changes)} documents differ" if changes else "no differences")


def verification_json(found: "Verification") -> dict[str, object]:
    """Return a verification as JSON."""
    return {
        "good": found.good,
        "changes": changes_json(found.changes),
        "dangers": [
            {"part": item.part, "says": item.description} for item in found.misconfigurations
        ],
        "properties": verdicts_json(found.verdicts),
        "probes": [
            {
                "probe": item.probe.name,
                "role": item.probe.role.value,
                "outcome": item.outcome.value,
                "answer": item.answer,
            }
            for item in found.probes
        ],
    }


def draw_verification(console: "Console", found: "Verification") -> None:
    """Print differences, misconfigurations, properties and the results of the probes."""
    for change in found.changes:
        console.print(f"DIFFERS  {change.name}: see `sluice policies diff`", markup=False)
    for item in found.misconfigurations:
        console.print(f"MISCONFIGURED  {item.part}: {item.description}", markup=False)
    if not found.verdicts:
        console.print(
            "BROKEN   a policy document is missing, so nothing is proved; see"
            " `sluice policies diff`",
            markup=False,
        )
    draw_verdicts(console, tuple(v for v in found.verdicts if not v.holds) or found.verdicts)
    for result in found.probes:
        mark = "WRONG " if result.outcome is ProbeOutcome.WRONG else "tested"
        mark = "      " if result.outcome is ProbeOutcome.NOT_TRIED else mark
        wanted = "must be denied" if result.probe.must_be_denied else "must be allowed"
        text = f"{mark}  {result.probe.name} ({result.probe.role.value}, {wanted})"
        console.print(f"{text}: {result.outcome.value} {result.answer}", markup=False)
    console.print("verified" if found.good else "NOT verified")
