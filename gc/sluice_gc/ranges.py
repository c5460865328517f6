"""Splits `accepted/` and `quarantine/` into key ranges that tasks can list at the same time."""

from typing import Final

from sluice_store.port import ObjectStore

_PROBES_MAX: Final = 4096
_RANGES_PER_TASK: Final = 4
_RANGE_OBJECTS: Final = 200_000

Bounds = tuple[str, str | None]


def wanted_ranges(chosen: int, tasks_at_once: int, objects_before: int) -> int:
    """Gives into how many ranges to cut: what was chosen, else by cores and by what is there.

    A task holds the rows of its range in memory, so a large store wants more ranges than cores.
    """
    if chosen > 0:
        return chosen
    by_cores = tasks_at_once * _RANGES_PER_TASK if tasks_at_once > 1 else 1
    return max(by_cores, -(-objects_before // _RANGE_OBJECTS))


async def split_prefix(store: ObjectStore, prefix: str, wanted: int) -> list[Bounds]:
    """Gives bounds that cover a prefix, split between agents into about `wanted` ranges.

    Agents are found by probing: one page each, then past the agent's last possible key. No agent
    lies in two ranges, so that gaps in its sequence numbers are seen by one task.

    Raises:
        StoreError: No answer, or a refusal.
    """
    if wanted <= 1:
        return [("", None)]
    agents = await _find_agents(store, prefix)
    step = max(1, -(-len(agents) // wanted))
    return join_bounds([past_agent(one) for one in agents[step - 1 : -1 : step]])


def join_bounds(cuts: list[str]) -> list[Bounds]:
    """Gives contiguous bounds from the first key to the last, cut at `cuts`."""
    starts = ["", *cuts]
    return list(zip(starts, [*cuts, None], strict=True))


def past_agent(place: str) -> str:
    """Gives a bound after every key `…agent=<hex>/boot=…`, and before every other agent's.

    `/` sorts below every hex digit, so no longer id that starts with the same hex lies between.
    """
    return f"{place}~"


async def _find_agents(store: ObjectStore, prefix: str) -> list[str]:
    """Gives `…agent=<hex>/` of every agent, or of the first ones when there are very many."""
    agents: list[str] = []
    after = ""
    while len(agents) < _PROBES_MAX:
        key = await first_key(store, prefix, after)
        if key is None:
            break
        place = agent_place(key)
        agents.append(place)
        after = past_agent(place)
    return agents


def agent_place(key: str) -> str:
    """Gives a key up to and with the slash after `agent=<hex>`; a foreign key stands for itself."""
    head, found, rest = key.partition("agent=")
    agent, slash, _ = rest.partition("/")
    return f"{head}{found}{agent}/" if found and slash else key


async def first_key(store: ObjectStore, prefix: str, after: str) -> str | None:
    """Gives the first key under a prefix after another one, or None.

    Raises:
        StoreError: No answer, or a refusal.
    """
    async for page in store.list(prefix, start_after=after):
        for one in page.objects:
            return one.key
        if page.last:
            return None
    return None
