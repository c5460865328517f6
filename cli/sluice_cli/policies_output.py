"""How `sluice policies` shows what it found."""

from typing import TYPE_CHECKING

from rich.console import Console

from sluice_policies.live_documents import DocumentChange
from sluice_policies.probes import ProbeOutcome

if TYPE_CHECKING:  # they need z3, which is an extra
    from sluice_policies.prove import Verdict
    from sluice_policies.verify import Verification


def verdicts_json(verdicts: "tuple[Verdict, ...]") -> list[dict[str, object]]:
    """Gives verdicts as programs read them."""
    return [
        {
            "property": verdict.property.name,
            "says": verdict.property.description,
            "holds": verdict.holds,
            "counterexample": _told(verdict),
        }
        for verdict in verdicts
    ]


def _told(verdict: "Verdict") -> str | None:
    if verdict.counterexample is not None:
        return str(verdict.counterexample)
    return verdict.unknown or None


def draw_verdicts(console: Console, verdicts: "tuple[Verdict, ...]") -> None:
    """Draws one line for each property, and the request that breaks it."""
    for verdict in verdicts:
        mark = "proved" if verdict.holds else "BROKEN"
        item = verdict.property
        console.print(f"{mark}  {item.name}: {item.description}", markup=False)
        if not verdict.holds:
            console.print(f"        {_told(verdict)}", markup=False)
    held = sum(verdict.holds for verdict in verdicts)
    console.print(f"{held} of {len(verdicts)} properties proved")


def changes_json(changes: tuple[DocumentChange, ...]) -> list[dict[str, str]]:
    """Gives changes as programs read them."""
    return [{"name": change.name, "diff": change.unified()} for change in changes]


def draw_changes(console: Console, changes: tuple[DocumentChange, ...]) -> None:
    """Draws the differences, in the order in which they would be applied."""
    for change in changes:
        console.print(change.unified(), markup=False)
    console.print(f"{len(changes)} documents differ" if changes else "nothing differs")


def verification_json(found: "Verification") -> dict[str, object]:
    """Gives a verification as programs read it."""
    return {
        "good": found.good,
        "changes": changes_json(found.changes),
        "dangers": [
            {"part": danger.part, "says": danger.description} for danger in found.misconfigurations
        ],
        "properties": verdicts_json(found.verdicts),
        "probes": [
            {
                "probe": item.probe.name,
                "role": item.probe.role.value,
                "outcome": item.outcome.value,
                "answer": item.answer,
            }
            for item in found.tried
        ],
    }


def draw_verification(console: Console, found: "Verification") -> None:
    """Draws what differs, what is dangerous, what is proved and what the store answered."""
    for change in found.changes:
        console.print(f"DIFFERS  {change.name}: see `sluice policies diff`", markup=False)
    for danger in found.misconfigurations:
        console.print(f"DANGER   {danger.part}: {danger.description}", markup=False)
    if not found.verdicts:
        console.print("BROKEN   a policy document is missing: nothing is proved, see `diff`")
    draw_verdicts(console, tuple(v for v in found.verdicts if not v.holds) or found.verdicts)
    for item in found.tried:
        mark = "WRONG " if item.outcome is ProbeOutcome.WRONG else "tried "
        mark = "      " if item.outcome is ProbeOutcome.NOT_TRIED else mark
        wanted = "must be refused" if item.probe.refuse else "must go through"
        text = f"{mark}  {item.probe.name} ({item.probe.role.value}, {wanted})"
        console.print(f"{text}: {item.outcome.value} {item.answer}", markup=False)
    console.print("good" if found.good else "NOT good")
