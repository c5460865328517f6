"""A sender with a token, requests of it, and the frames that a gateway made of them."""

import hashlib
import io
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass, field

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from support.gateway import Running, TestKey

from sluice_doors.table import DoorName
from sluice_gateway.door_tokens import DoorToken, create_token
from sluice_protocol.frame import Frame, decode_frame
from sluice_protocol.keys import ACCEPTED
from sluice_protocol.manifests import decode_accepted
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore

T0_NS = 1_790_000_000_123_456_789
PROTOBUF = {"Content-Type": "application/x-protobuf"}


@dataclass(frozen=True)
class TestSender(TestKey):
    """A principal that has a token and may use doors."""

    __test__ = False

    doors: tuple[DoorName, ...] = ("otlp",)
    secret: str = ""
    made: list[DoorToken] = field(default_factory=list)

    @property
    def token(self) -> DoorToken:
        if not self.made:
            self.made.append(create_token(self.name, self.doors))
        return self.made[0]

    @property
    def entry(self) -> str:
        made = self.token
        if not self.secret:
            return made.principal
        digest = hashlib.sha256(self.secret.encode()).hexdigest()
        return made.principal.replace(made.sha256, digest)


@dataclass(frozen=True)
class DoorAnswer:
    """A response of a door."""

    status: int
    body: bytes
    headers: Mapping[str, str]


async def post(
    served: Running,
    path: str,
    body: bytes | AsyncIterable[bytes],
    token: str,
    headers: Mapping[str, str] = PROTOBUF,
) -> DoorAnswer:
    url = f"http://127.0.0.1:{served.port}{path}"
    data = io.BytesIO(body) if isinstance(body, bytes) else body
    fields = {"Authorization": f"Bearer {token}", **headers}
    async with served.client.session.post(url, data=data, headers=fields) as answer:
        return DoorAnswer(answer.status, await answer.read(), answer.headers)


def otlp_logs(*lines: str, at_ns: int = T0_NS) -> bytes:
    """Return an OTLP request of log records; `at_ns` 0 leaves their times out."""
    request = ExportLogsServiceRequest()
    each = request.resource_logs.add()
    attribute = each.resource.attributes.add()
    attribute.key, attribute.value.string_value = "service.name", "shop"
    scope = each.scope_logs.add()
    for line in lines:
        record = scope.log_records.add()
        record.time_unix_nano = at_ns
        record.body.string_value = line
    return request.SerializeToString()


async def accepted_frames(store: ObjectStore) -> list[Frame]:
    """Return every accepted frame of a store, in the order of their keys."""
    frames = []
    async for page in store.list(ACCEPTED):
        for entry in page.objects:
            found = await store.get(entry.key)
            assert isinstance(found, Found)
            blob = await store.get(ObjectKey(decode_accepted(entry.key, found.body).raw_blob_key))
            assert isinstance(blob, Found)
            frames.append(decode_frame(blob.body))
    return frames
