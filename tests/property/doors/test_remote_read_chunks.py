"""Chunks of remote read contain exactly the samples that were added, whatever their bits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.remote_read import Series, chunks_of, decode_chunk, samples_of

from sluice_doors.prometheus.read import (
    ChunkedAnswer,
    ReadAnswer,
    SampledAnswer,
    crc32c,
    xor_chunk,
)

STEPS = st.one_of(
    st.integers(1, 3), st.integers(1, 1 << 15), st.integers(1, 1 << 21), st.integers(1, 1 << 40)
)
BITS = st.one_of(
    st.sampled_from([0, 1 << 63, 0x7FF0000000000002, 0x7FF8000000000001, (1 << 64) - 1]),
    st.integers(0, (1 << 64) - 1),
    st.floats().map(lambda one: int(np.float64(one).view(np.uint64))),
)
SAMPLES = st.lists(st.tuples(STEPS, BITS), min_size=1, max_size=300)


def with_times(first_ms: int, steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    times = first_ms + np.cumsum([step for step, _ in steps])
    return [(int(at), bits) for at, (_, bits) in zip(times, steps, strict=True)]


@given(st.integers(-(1 << 45), 1 << 45), SAMPLES)
def test_a_chunk_has_its_samples(first_ms: int, steps: list[tuple[int, int]]) -> None:
    samples = with_times(first_ms, steps)
    data = xor_chunk([at for at, _ in samples], [bits for _, bits in samples])
    assert decode_chunk(data) == samples


@given(st.lists(st.tuples(SAMPLES, st.integers(1, 50)), min_size=1, max_size=4))
def test_answers_have_all_samples_of_all_parts(
    parts: list[tuple[list[tuple[int, int]], int]],
) -> None:
    """Samples arrive in parts of any size; series follow each other in one query and in two."""
    answers: list[ReadAnswer] = [SampledAnswer(), ChunkedAnswer()]
    wanted: list[Series] = [{}, {}]
    bodies = [b"", b""]
    for query in range(2):
        bodies = [body + one.begin(query) for body, one in zip(bodies, answers, strict=True)]
        for place, (steps, size) in enumerate(parts):
            of = (("__name__", "up"), ("place", str(place)))
            samples = wanted[query][of] = with_times(0, steps)
            times = np.array([at for at, _ in samples], np.int64)
            values = np.array([bits for _, bits in samples], np.uint64).view(np.float64)
            for start in range(0, len(samples), size):
                some = slice(start, start + size)
                bodies = [
                    body + one.add(of, times[some], values[some])
                    for body, one in zip(bodies, answers, strict=True)
                ]
    sampled, chunked = (body + one.finish() for body, one in zip(bodies, answers, strict=True))
    assert samples_of(sampled) == wanted
    assert chunks_of(chunked, 2) == wanted


def test_the_checksum_is_the_one_of_its_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283
