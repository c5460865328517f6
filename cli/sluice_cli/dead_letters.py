"""`sluice query dead-letters`: accepted batches that could not be ingested, and why."""

from typing import TYPE_CHECKING

from sluice_protocol.identity import format_identity

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_query.dead_letter_list import DeadLetterList


def draw_dead_letters(console: "Console", found: "DeadLetterList") -> None:
    """Print dead letters, each with the command that shows its whole path."""
    for one in found.dead_letters:
        name = format_identity(one)
        console.print(f"{name}: {one.reason}, {one.record_count} records of kind {one.kind}")
        console.print(f"  accepted {one.accepted_at}, last tried {one.observed_at}")
        console.print(f"  {one.detail}")
    console.print(f"{'more than ' if found.more else ''}{len(found.dead_letters)} dead letters")
