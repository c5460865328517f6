"""A short run with real processes: each fault happens, and the checkers accept the history."""

import asyncio
import json
from pathlib import Path

import pytest
from support.simloop import seeds
from verify.checking import CHECKERS, build_checkers, check_history
from verify.running import run

FAULTS = (
    *("balancer_reset_after_forwarding", "balancer_repeat", "gateway_killed", "gateway_stopped"),
    "reconciler_killed",
)
pytestmark = [pytest.mark.long, pytest.mark.s3]


@pytest.mark.parametrize(
    ("store", "faults"),
    [
        ("directory", ("store_moved_away", "mode_switched")),
        ("versitygw", ("store_reset_after_forwarding",)),
    ],
)
@pytest.mark.parametrize("seed", seeds(1))
def test_a_short_run_breaks_no_promise(
    seed: int, store: str, faults: tuple[str, ...], tmp_path: Path
) -> None:
    """The same history with one row left out is refused, so the checkers have read it."""
    result = asyncio.run(run(tmp_path, store, 15.0, seed, spark=False, faults=(*FAULTS, *faults)))
    assert result["passed"], json.dumps(result, indent=2)
    # The store was moved away; a gateway found the switch.
    assert result["errors_logged"].keys() <= {"request_error", "authority_switched"}
    assert min(result["firings"].values()) > 0
    lanes = next(one for one in result["verdicts"] if one["checker"] == "lanes")
    assert (lanes["operations"] > 0) == (store != "directory")
    history = tmp_path / "history"
    lines = (history / "state.jsonl").read_text().splitlines(keepends=True)
    bodies = {str(json.loads(line).get("body")) for line in lines}
    lost = next(
        at
        for at, line in enumerate(lines)
        for name, _, number in [str(json.loads(line).get("body")).partition(" ")]
        if number == "0" and f"{name} 1" not in bodies  # the only record of its batch
    )
    (history / "state.jsonl").write_text("".join(lines[:lost] + lines[lost + 1 :]))
    broken = {
        checker: check_history(build_checkers(tmp_path), checker, history)["broken"]
        for checker in CHECKERS
    }
    assert broken == {"register": 0, "lanes": 0, "facts": 1}
