"""Random questions of PromQL over the series of a small shop, and samples with every oddity."""

import math
import random
from collections.abc import Callable, Iterator

from support.remote_read import NAN_BITS, STALE_BITS, Series, bits_of, labels

STEP_MS = 15_000
STEPS = 480
"""Two hours."""
JOBS, INSTANCES, BOUNDS = ("api", "web"), ("a", "b", "c"), ("0.1", "0.5", "2.5", "+Inf")


def written_series(start_ms: int, seed: int = 1) -> Series:
    """Return counters that restart, gauges, a histogram, and series that begin and end."""
    rng = random.Random(seed)
    found: Series = {}
    for job in JOBS:
        for instance in INSTANCES:
            named = {"job": job, "instance": f"{instance}:9090"}
            found[labels("up", **named)] = _values(
                start_ms, rng, lambda _, rng: float(rng.random() > 0.05)
            )
            for code in ("200", "404", "500"):
                found[labels("requests_total", code=code, **named)] = _counter(start_ms, rng)
            found[labels("temperature_celsius", **named)] = _values(
                start_ms, rng, lambda step, rng: 20 + 5 * math.sin(step / 20) + rng.random()
            )
            for bound, samples in zip(BOUNDS, _histogram(start_ms, rng), strict=True):
                found[labels("took_seconds_bucket", le=bound, **named)] = samples
            found[labels("took_seconds_count", **named)] = samples
            found[labels("took_seconds_sum", **named)] = _counter(start_ms, rng)
    found[labels("odd", kind="nan")] = _values(
        start_ms, rng, lambda step, _: math.nan if step % 7 == 0 else float(step)
    )
    found[labels("odd", kind="inf")] = _values(
        start_ms, rng, lambda step, _: math.inf if step % 11 == 0 else -float(step)
    )
    found[labels("odd", kind="bits")] = [
        (start_ms + step * STEP_MS, NAN_BITS if step % 5 == 0 else bits_of(step / 3))
        for step in range(STEPS)
    ]
    found[labels("odd", kind="largest")] = _values(start_ms, rng, lambda _, __: 1.7e308)
    gone = found[labels("up", job="web", instance="c:9090")]
    gone[100:140] = [(gone[100][0], STALE_BITS)]
    gone[-60:] = [(gone[-60][0], STALE_BITS)]
    return found


def _values(
    start_ms: int, rng: random.Random, value: Callable[[int, random.Random], float]
) -> list[tuple[int, int]]:
    jitter = rng.randrange(1000)
    return [
        (start_ms + step * STEP_MS + jitter, bits_of(value(step, rng)))
        for step in range(STEPS)
        if rng.random() > 0.01
    ]


def _counter(start_ms: int, rng: random.Random) -> list[tuple[int, int]]:
    total = 0.0

    def grown(step: int, rng: random.Random) -> float:
        nonlocal total
        total = 0.0 if rng.random() < 0.01 else total + rng.randrange(50)
        return total

    return _values(start_ms, rng, grown)


def _histogram(start_ms: int, rng: random.Random) -> list[list[tuple[int, int]]]:
    totals = [0] * len(BOUNDS)
    found: list[list[tuple[int, int]]] = [[] for _ in BOUNDS]
    for step in range(STEPS):
        for place in range(len(BOUNDS)):
            totals[place] += sum(rng.randrange(4) for _ in range(place + 1))
        running = 0
        for place, one in enumerate(totals):
            running = max(running, one)
            found[place].append((start_ms + step * STEP_MS, bits_of(float(running))))
    return found


_GAUGES = ("up", "temperature_celsius", "odd", "requests_total")
_OVER_TIME = ("avg", "min", "max", "sum", "count", "stddev", "stdvar", "last", "present")
_FUNCTIONS = ("abs", "ceil", "floor", "exp", "sqrt", "sgn", "ln", "round", "sort", "timestamp")
_AGGREGATES = ("sum", "avg", "min", "max", "count", "group", "stddev", "stdvar")


class Questions:
    """Yields random expressions, alike for a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def __iter__(self) -> Iterator[str]:
        while True:
            yield self._vector(3)

    def _one(self, *choices: str) -> str:
        return self._rng.choice(choices)

    def _matchers(self) -> str:
        """Return matchers of all four kinds, also of labels that no series has."""
        known = (
            *('job="api"', 'job!="api"', 'job=~"a.*|web"', 'job!~"we."', 'instance=~"[ab]:9090"'),
            *('instance!="a:9090"', 'code=~"4..|5.."', 'code=""', 'missing=""', 'missing!="x"'),
            *('missing!~".+"', 'job=~".+"', 'instance=~"a"'),
        )
        count = self._rng.choice((0, 0, 1, 1, 2))
        return ",".join(self._rng.sample(known, count))

    def _selector(self, *names: str) -> str:
        return f"{self._one(*names)}{{{self._matchers()}}}"

    def _changed(self) -> str:
        return self._one(
            "", "", "", " offset 5m", " offset 1h", " offset -2m", " @ start()", " @ end()"
        )

    def _range(self, *names: str) -> str:
        width = self._one("1m", "5m", "17m", "1h")
        return f"{self._selector(*names)}[{width}]{self._changed()}"

    def _leaf(self) -> str:
        counter = ("requests_total", "took_seconds_count", "took_seconds_sum")
        counted = f"{self._one('rate', 'increase', 'irate', 'resets')}({self._range(*counter)})"
        by = self._one("le", "le, job", "le, instance")
        buckets = f"sum by ({by}) (rate({self._range('took_seconds_bucket')}))"
        quantile, over = self._one("0.5", "0.9", "0.99"), self._one(*_OVER_TIME)
        changed = self._one("delta", "idelta", "deriv", "changes")
        return self._one(
            counted,
            counted,
            f"{changed}({self._range(*_GAUGES)})",
            f"{over}_over_time({self._range(*_GAUGES)})",
            f"quantile_over_time({quantile}, {self._range(*_GAUGES)})",
            f"histogram_quantile({quantile}, {buckets})",
            f"max_over_time(rate({self._selector(*counter)}[5m])[30m:2m])",
            f"{self._selector(*_GAUGES)}{self._changed()}",
        )

    def _vector(self, depth: int) -> str:
        if not depth or self._rng.random() < 0.25:
            return self._leaf()
        inner = self._vector(depth - 1)
        how = self._one("", " by (job)", " by (job, code)", " without (instance)")
        aggregated = f"{self._one(*_AGGREGATES)}{how} ({inner})"
        sign = self._one("+", "-", "*", "/", "%", ">", "<=", "== bool", "!=")
        joined, by = self._one("+", "/", "and", "or", "unless", "> bool"), self._one("job", "code")
        return self._one(
            aggregated,
            aggregated,
            f"{self._one(*_FUNCTIONS)}({inner})",
            f"({inner} {sign} {self._one('0', '1', '2.5', '100')})",
            f"(sum by ({by}) ({inner}) {joined} sum by ({by}) ({self._vector(depth - 1)}))",
            f'label_replace({inner}, "shown", "$1", "instance", "(.):.*")',
            f"clamp({inner}, 0.5, 1000)",
        )
