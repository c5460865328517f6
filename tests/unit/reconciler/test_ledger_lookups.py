"""Lives that are looked up together: the same answers as of lives that are looked up alone."""

import copy
import random
from collections.abc import Callable, Iterable

import pytest

from sluice_protocol.identity import Identity
from sluice_reconciler.lanes import parts
from sluice_reconciler.lanes.enqueued import EnqueuedBatches, IntendedBatch
from sluice_reconciler.lanes.parts import Boot, LanePart, merge_parts
from sluice_reconciler.lanes.sequence_ranges import BootRanges

LIVES = [(f"agent-{number % 4}", f"boot-{number}") for number in range(12)]
NOW_S = 50


def differs(seed: int) -> bool:
    """Change a ledger that looks lives up together, and one that does not, in the same way."""
    rng = random.Random(seed)
    together, alone = EnqueuedBatches(), EnqueuedBatches()
    runs: list[list[LanePart]] = []
    for _ in range(60):
        match rng.randrange(5):
            case 0:
                together.load(rng.sample(LIVES, rng.randrange(6)))
            case 1 | 2:
                (agent, boot), seq = rng.choice(LIVES), 10 * rng.randrange(9)
                who = Identity(agent_id=agent, boot_id=boot, seq_start=seq, seq_end=seq + 9)
                if together.status(who) is not alone.status(who):
                    return True
                batch = IntendedBatch(agent_id=agent, boot_id=boot, seq_start=seq, seq_end=seq + 9)
                together.add(batch)
                alone.add(batch)
            case 3:
                life, seq = rng.choice(LIVES), 10 * rng.randrange(9)
                for ledger in (together, alone):
                    restored = BootRanges()
                    restored.add(seq, seq + 9)
                    ledger.restore(life, restored)
            case _:
                deltas = together.delta(NOW_S), alone.delta(NOW_S)
                if deltas[1] is not None:
                    runs.append([deltas[1].part])
                    if len(runs) > 2:
                        merged = [part for run in runs[1:] for part in run]
                        runs = [runs[0], list(merge_parts(merged, 3))]
                together.settle(runs, deltas[0])
                alone.settle(runs, deltas[1])
        for life in LIVES:
            if together.boot(*life) != alone.boot(*life):
                return True
    return False


@pytest.mark.long
def test_lives_looked_up_together_have_the_state_that_they_have_alone() -> None:
    assert not any(differs(seed) for seed in range(60))


def test_lives_with_the_same_start_of_their_key_are_distinguished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = parts.key_of_boot
    monkeypatch.setattr(parts, "key_of_boot", lambda life: (7, *real(life)[1:]))
    states = {life: BootRanges() for life in LIVES}
    for number, ranges in enumerate(states.values()):
        ranges.add(10 * number, 10 * number + 9)
    part = parts.make_part(states, NOW_S)
    keys = {life: parts.key_of_boot(life) for life in [*LIVES, ("agent-9", "boot-9")]}
    found = part.find_all(list(keys.values()))
    assert {life: found.get(key) for life, key in keys.items()} == {
        **states,
        ("agent-9", "boot-9"): None,
    }


def _kept_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change a copy of the state that was looked up, which stays in memory as it was."""
    real = EnqueuedBatches._change

    def change(self: EnqueuedBatches, life: Boot) -> BootRanges:
        kept = dict(self._loaded)
        boot = real(self, life)
        if life in kept:
            self._changed[life], self._loaded[life] = copy.deepcopy(boot), kept[life]
        return self._changed[life]

    monkeypatch.setattr(EnqueuedBatches, "_change", change)


def _oldest_run_first(monkeypatch: pytest.MonkeyPatch) -> None:
    real = EnqueuedBatches.load

    def load(self: EnqueuedBatches, lives: Iterable[Boot]) -> None:
        self._runs.reverse()
        real(self, lives)
        self._runs.reverse()

    monkeypatch.setattr(EnqueuedBatches, "load", load)


def _first_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    real = EnqueuedBatches.load

    def load(self: EnqueuedBatches, lives: Iterable[Boot]) -> None:
        whole, self._runs = self._runs, [run[:1] for run in self._runs]
        real(self, lives)
        self._runs = whole

    monkeypatch.setattr(EnqueuedBatches, "load", load)


def _kept_after_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a life that was looked up before, and keep that it had no state."""
    real = EnqueuedBatches.restore

    def restore(self: EnqueuedBatches, life: Boot, ranges: BootRanges) -> None:
        kept = dict(self._loaded)
        real(self, life, ranges)
        self._loaded = kept

    monkeypatch.setattr(EnqueuedBatches, "restore", restore)


@pytest.mark.parametrize(
    "plant", [_kept_after_a_change, _kept_after_a_restore, _oldest_run_first, _first_part_only]
)
def test_planted_bugs_in_the_lookup_of_many_lives_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(differs(seed) for seed in range(60))
