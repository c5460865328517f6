"""Uploads of several frames in one signed request."""

from typing import Any

from support.gateway import Client, HttpResult, upload_fields

from sluice_protocol.upload_http import (
    FRAME_LIST_MEDIA_TYPE,
    UPLOAD_LIST_PATH,
    ListedFrame,
    encode_frame_list,
)


def head_of(client: Client, body: bytes, **changed: str) -> dict[str, str]:
    fields = upload_fields(body) | {"Content-Type": FRAME_LIST_MEDIA_TYPE}
    fields |= {name.replace("_", "-"): text for name, text in changed.items()}
    return client.key.sign(fields, client.authority, path=UPLOAD_LIST_PATH)


async def post(client: Client, body: bytes, fields: dict[str, str]) -> HttpResult:
    url = f"http://{client.authority}{UPLOAD_LIST_PATH}"
    async with client.session.post(url, data=body, headers=fields) as answer:
        return HttpResult(answer.status, await answer.json(content_type=None), answer.headers)


async def send_list(client: Client, *frames: bytes | ListedFrame) -> list[dict[str, Any]]:
    listed = [one if isinstance(one, ListedFrame) else ListedFrame(frame=one) for one in frames]
    body = encode_frame_list(listed)
    answer = await post(client, body, head_of(client, body))
    assert answer.status == 200, answer
    return list(answer.body["results"])
