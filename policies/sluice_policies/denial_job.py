"""Prove the denials in a separate process: `python -m sluice_policies.denial_job REQUEST`.

The solver keeps its memory, and its formulas are made under the lock of the interpreter. A service
that shows the proofs therefore runs this. REQUEST is a `DenialRequest` as JSON; standard output is
a `DenialAnswer` as JSON.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from sluice_policies.denials import DenialReport
from sluice_policies.live_documents import read_effective_policies
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.settings import read_settings
from sluice_protocol.errors import SluiceError


class DenialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which documents are proved: those of the bucket (`live`), or those that sluice renders."""

    settings: str
    live: bool = False


class DenialAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result: a report, or why there is none and what to do."""

    report: DenialReport | None = None
    problem: str = ""


def answer_denials(request: DenialRequest) -> DenialAnswer:
    """Return the denials of the documents, or why they cannot be proved."""
    try:
        from sluice_policies.prove_denials import prove_denials  # noqa: PLC0415 - z3 is an extra

        return DenialAnswer(report=prove_denials(_documents(request)))
    except SluiceError as error:
        return DenialAnswer(problem=str(error))


def _documents(request: DenialRequest) -> PolicySet:
    settings = read_settings(Path(request.settings))
    if not request.live:
        return policy_set(settings, settings.target)
    return asyncio.run(read_effective_policies(settings))


def main() -> None:
    """Print the answer to the request of the command line."""
    request = msgspec.json.decode(sys.argv[1], type=DenialRequest)
    sys.stdout.buffer.write(msgspec.json.encode(answer_denials(request)))


if __name__ == "__main__":
    main()
