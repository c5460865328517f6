"""What needs attention at the gateways whose metrics are read. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from sluice_console.attention_items import (
    NAMED_MAX,
    AttentionItem,
    Severity,
    count_text,
    duration_text,
)
from sluice_console.gateway_health import (
    JOURNAL_AGE_S_MAX,
    LOOKUP,
    REFUSED_SHARE_MAX,
    SLOW_SHARE_MAX,
    GatewayHealth,
)
from sluice_web.refused_clients import WINDOW_MINUTES, RefusedDoor

_REMEDIES: Final = {
    "identity_conflict": "Other bytes own their identities: compare both sides of the conflicts.",
    "unauthenticated": "Correct the key or the token of the sender, or the principals file.",
    "forbidden_agent": "Correct the agents of the principal, or the name of the agent.",
    "identity_quarantined": "An operator has closed this boot: restart the agent.",
    "overloaded": "Start another gateway, or raise its limits.",
}
"""What to do about the most frequent outcome of refused uploads."""


def list_gateway_items(gateways: Sequence[GatewayHealth]) -> Iterator[AttentionItem]:
    """Yield what needs attention at gateways whose metrics are read."""
    broken = [one for one in gateways if one.problem]
    if broken and len(broken) == len(gateways):
        yield _gateway_item("error", "No gateway responds", broken[0].problem, broken[0].url)
    else:
        for one in broken[:NAMED_MAX]:
            yield _gateway_item("warning", "A gateway does not respond", one.problem, one.url)
    closed = [one for one in gateways if one.not_ready]
    if closed and len(closed) == len(gateways):
        yield _gateway_item("error", "No gateway is ready", closed[0].not_ready, closed[0].url)
    else:
        for one in closed[:NAMED_MAX]:
            yield _gateway_item("warning", "A gateway is not ready", one.not_ready, one.url)
    found = [item for one in gateways for item in _of_gateway(one)]
    yield from found[: 2 * NAMED_MAX]
    yield from _of_refused_clients(gateways)


def _of_refused_clients(gateways: Sequence[GatewayHealth]) -> Iterator[AttentionItem]:
    """Yield one item for each door whose clients some gateways refused in the last minutes."""
    by_door: defaultdict[str, list[tuple[GatewayHealth, RefusedDoor]]] = defaultdict(list)
    for one in gateways:
        for door in one.refused_doors:
            by_door[door.door].append((one, door))
    for name, found in sorted(by_door.items()):
        gateway, last = min(found, key=lambda pair: pair[1].last_s)
        refusals = sum(door.refusals for _, door in found)
        peer = f" from {last.peer}" if last.peer else ""
        yield _gateway_item(
            "notice",
            "Agents without a valid key are refused"
            if name == "uploads"
            else f"Clients without a valid key are refused, door={name}",
            f"{count_text(refusals, 'refusal', 'refusals')} in the last {WINDOW_MINUTES} min, the"
            f" last {duration_text(last.last_s)} ago{peer}: {last.reason}. Nothing of what they"
            " sent is stored, and many do not notice it. Give them the key of a principal; the"
            " log of the gateway has the reason, event request_refused.",
            gateway.url,
        )


def _of_gateway(one: GatewayHealth) -> Iterator[AttentionItem]:
    if one.journal_age_s > JOURNAL_AGE_S_MAX:
        detail = (
            f"Its journal is {duration_text(one.journal_age_s)} old; from 60 s it accepts nothing."
            " Check its rights for gateways/, and the store."
        )
        yield _gateway_item("error", "A gateway cannot write its journal", detail, one.url)
    if one.spool_full:
        detail = (
            f"Accepted batches are on this disk only, and {one.spool_full}. Restore the connection"
            " to the bucket, or enlarge the disk; delete no file of the spool."
        )
        yield _gateway_item("error", "The spool of a gateway is nearly full", detail, one.url)
    if one.principals_stale:
        detail = (
            "New and revoked keys have no effect. Its log names the line, event"
            " principals_invalid; the corrected file is read without a restart."
        )
        title = "A gateway ignores an invalid principals file"
        yield _gateway_item("warning", title, detail, one.url)
    if one.refused > REFUSED_SHARE_MAX:
        conflict = one.refused_as == "identity_conflict"
        title = f"A gateway refuses {one.refused:.0%} of the uploads"
        remedy = _REMEDIES.get(one.refused_as, "Check the store and the limits of the gateway.")
        detail = f"Most often: {one.refused_as}. {remedy}"
        page = "conflicts" if conflict else "queue"
        yield _gateway_item("warning", title, detail, one.url, page=page)
    if one.slow > SLOW_SHARE_MAX:
        title = "The store is slow for a gateway"
        detail = (
            f"{one.slow:.0%} of its calls took longer than 5 s. Compare with the status page of the"
            " provider; uploads wait at most 30 s and are repeated."
        )
        yield _gateway_item("warning", title, detail, one.url, page="store")


def _gateway_item(
    severity: Severity, title: str, detail: str, url: str, *, page: str = "queue"
) -> AttentionItem:
    return AttentionItem(
        severity=severity,
        title=title,
        detail=f"{detail} url={url}",
        page=page,
        command="" if url.startswith(LOOKUP) else f"curl {url}/readyz",
    )
