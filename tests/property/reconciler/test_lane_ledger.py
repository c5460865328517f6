"""A ledger over parts compared with one that keeps every life in memory."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.repetitions import examples

from sluice_protocol.identity import Identity
from sluice_protocol.units import ObjectKey
from sluice_reconciler.lanes.enqueued import EnqueuedBatches, IntendedBatch
from sluice_reconciler.lanes.part_log import FAN_IN, RECENT_MAX, plan_merge, tier_of
from sluice_reconciler.lanes.parts import decode_part, encode_part, merge_parts

LIVES = [(f"agent-{number % 4}", f"boot-{number}") for number in range(12)]
STEPS = st.lists(
    st.one_of(st.sampled_from(range(len(LIVES))), st.sampled_from(["spill", "merge"])), max_size=60
)


@settings(max_examples=examples(200), deadline=None)
@given(STEPS, st.integers(1, 4))
def test_ledger_over_parts_equals_one_in_memory(steps: list[int | str], lives_max: int) -> None:
    """After any order of batches, new parts and merges of the newest runs."""
    plain, ledger = EnqueuedBatches(), EnqueuedBatches()
    runs: list[list[object]] = []
    for number, step in enumerate(steps):
        if isinstance(step, int):
            agent, boot = LIVES[step]
            batch = IntendedBatch(
                agent_id=agent, boot_id=boot, seq_start=2 * number, seq_end=2 * number
            )
            plain.add(batch)
            ledger.add(batch)
            continue
        delta = ledger.delta(1)
        if delta is None:
            continue
        key = ObjectKey("part")
        part = decode_part(key, encode_part(delta.part))
        if step == "merge" and runs:
            runs[-1] = list(merge_parts([*runs[-1], part], lives_max))
        else:
            runs.append([part])
        ledger.settle(runs, delta)
        assert ledger.recent == ()
    for agent, boot in LIVES:
        assert ledger.boot(agent, boot) == plain.boot(agent, boot)
        who = Identity(agent_id=agent, boot_id=boot, seq_start=0, seq_end=0)
        assert ledger.status(who) == plain.status(who)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(1, 8 * RECENT_MAX), max_size=300), st.integers(0, 50_000))
def test_the_number_of_runs_stays_bounded(flushes: list[int], active: int) -> None:
    """However many flushes there are, a tier has at most as many runs as are merged."""
    runs: list[int] = []
    for lives in flushes:
        runs.append(lives)
        count = plan_merge(runs)
        if count:
            runs[-count:] = [max(1, min(sum(runs[-count:]), active))]
        assert len(runs) <= FAN_IN * (1 + max(map(tier_of, runs), default=0))


def test_lives_that_do_not_change_are_not_rewritten() -> None:
    """A thousand parts with the same 500 lives do not touch the run of a million others."""
    runs, rewritten = [1_000_000], 0
    for _ in range(1000):
        runs.append(500)
        count = plan_merge(runs)
        if count:
            assert count < len(runs)
            rewritten += sum(runs[-count:])
            runs[-count:] = [500]
    assert rewritten < 2 * 500 * 1000


def test_a_growing_state_rewrites_each_life_once_per_tier() -> None:
    runs, rewritten = [0], 0
    for _ in range(2000):
        runs.append(500)
        count = plan_merge(runs)
        if count:
            rewritten += sum(runs[-count:])
            runs[-count:] = [sum(runs[-count:])]
    assert rewritten < 2000 * 500 * (1 + tier_of(2000 * 500))
