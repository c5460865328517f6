"""The manifests that journals name and that are neither enqueued nor held yet."""

from collections.abc import Iterable

from sluice_protocol.keys import accepted_key, lane_of
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import ObjectKey
from sluice_reconciler.journals.reader import entry_weight


class NamedEntries:
    """Copies of manifests, by key. A copy proves no manifest; it saves reading an equal one."""

    def __init__(self, lanes: int) -> None:
        """Divide entries by the lanes of this deployment."""
        self._lanes = lanes
        self.manifests: dict[ObjectKey, AcceptedManifest] = {}

    @property
    def extra_weight(self) -> int:
        """How many plain entries need as much memory as the parts of these entries."""
        return sum(entry_weight(one) - 1 for one in self.manifests.values())

    def divide(
        self, manifests: Iterable[AcceptedManifest], lanes: frozenset[int]
    ) -> tuple[dict[ObjectKey, int], list[AcceptedManifest]]:
        """Return the entries of these lanes, which are remembered, and the manifests of others."""
        mine: dict[ObjectKey, int] = {}
        others: list[AcceptedManifest] = []
        for manifest in manifests:
            lane = lane_of(manifest.agent_id, self._lanes)
            if lane in lanes:
                key = accepted_key(manifest.identity)
                mine[key] = lane
                self.manifests[key] = manifest
            else:
                others.append(manifest)
        return mine, others

    def lanes_of(self, manifests: Iterable[AcceptedManifest]) -> frozenset[int]:
        """Return the lanes of manifests."""
        return frozenset(lane_of(one.agent_id, self._lanes) for one in manifests)

    def find(self, keys: Iterable[ObjectKey]) -> list[AcceptedManifest]:
        """Return the manifests that are remembered under these keys."""
        return [self.manifests[key] for key in keys if key in self.manifests]

    def forget(self, keys: Iterable[ObjectKey]) -> None:
        """Drop entries that are done."""
        for key in keys:
            self.manifests.pop(key, None)
