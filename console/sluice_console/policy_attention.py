"""What needs attention at the policies of the bucket. Pure."""

from collections.abc import Iterator

import msgspec

from sluice_console.attention_items import AttentionItem, count_text


class PolicyTotals(msgspec.Struct, frozen=True, kw_only=True):
    """How many required denials the documents of the bucket prove.

    Attributes:
        denied: How many are denied.
        allowed: How many are not denied.
        undecided: How many the solver could not decide.
        first: The first that is not denied, and the statements that are missing.
        problem: Why nothing could be proved; empty if it could.
        command: The command that proves the same documents.
    """

    denied: int = 0
    allowed: int = 0
    undecided: int = 0
    first: str = ""
    problem: str = ""
    command: str = "sluice policies denials"


def list_policy_items(totals: PolicyTotals | None) -> Iterator[AttentionItem]:
    """Yield an item if a request is allowed that must be denied, or if that is unknown."""
    if totals is None:
        return
    if totals.problem:
        yield AttentionItem(
            severity="warning",
            title="The policies of the bucket cannot be proved",
            detail=totals.problem,
            page="store",
            command=totals.command,
        )
    if totals.allowed:
        lost = count_text(
            totals.allowed, "denial of the policies is lost", "denials of the policies are lost"
        )
        yield AttentionItem(
            severity="error",
            title=lost,
            detail=f"{totals.first}. Compare with `sluice policies diff`, then apply the policies.",
            page="store",
            command=totals.command,
        )
    if totals.undecided:
        denials = count_text(totals.undecided, "denial", "denials")
        yield AttentionItem(
            severity="warning",
            title=f"The solver cannot decide {denials} of the policies",
            detail="A document contains more than sluice renders. Compare with"
            " `sluice policies diff`.",
            page="store",
            command=totals.command,
        )
