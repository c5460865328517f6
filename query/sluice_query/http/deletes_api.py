"""`/v1/deletes`: operators delete records over HTTP, and every client sees the deletes."""

from collections.abc import Sequence
from typing import Final

import structlog
from aiohttp import hdrs, web

from sluice_protocol.errors import ErrorCode
from sluice_protocol.keys import DELETES
from sluice_protocol.record_deletes import DeleteRecord, DeleteRequest
from sluice_query.deletes import (
    PAGE_DEFAULT,
    PAGE_MAX,
    DeleteReceipt,
    Deletes,
    DeleteView,
    UnreadableDelete,
)
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import check_json_type, decode_json_body, json_response
from sluice_web.parameters import AFTER, IntegerParameter, Page, read_cursor
from sluice_web.problems import HttpRefusal
from sluice_web.tokens import Operator, operator_of

log = structlog.get_logger()

DeletePage = Page[DeleteRecord | UnreadableDelete]
_UNREADABLE: Final = "A page; a delete that cannot be read has only `key` and `unreadable`"
_LIMIT: Final = IntegerParameter(name="limit", default=PAGE_DEFAULT, maximum=PAGE_MAX)
_PROBLEMS: Final = {
    "400": "The request is malformed",
    "401": "The request does not contain a token",
    "403": "The token is not that of an operator",
    "409": "`delete_id_taken`: another delete has this id",
    "503": "The store is unreachable, or it is unknown whether the delete exists: send it again",
}


class DeletesApi:
    """The three endpoints of the deletes."""

    def __init__(self, deletes: Deletes, operators: Sequence[Operator]) -> None:
        self._deletes = deletes
        self._operators = operators

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="POST",
                path="/v1/deletes",
                handler=self._submit,
                summary="Hide matching records permanently, or count them in a dry run",
                body=DeleteRequest,
                result=DeleteReceipt,
                result_summary="The delete as it is stored, or the counts of a dry run",
                problems=_PROBLEMS,
            ),
            Endpoint(
                method="GET",
                path="/v1/deletes",
                handler=self._list,
                summary="List deletes in the order of their ids",
                parameters=(AFTER, _LIMIT),
                result=Page[DeleteRecord],
                result_summary=_UNREADABLE,
            ),
            Endpoint(
                method="GET",
                path="/v1/deletes/{id}",
                handler=self._show,
                summary="Return one delete and which tables honour it",
                result=DeleteView,
            ),
        )

    async def _submit(self, request: web.Request) -> web.Response:
        name = operator_of(request.headers.get(hdrs.AUTHORIZATION, ""), self._operators)
        if name is None:
            raise HttpRefusal(ErrorCode.FORBIDDEN, "the sender is not an operator")
        check_json_type(request)
        wanted = decode_json_body(await request.read(), DeleteRequest)
        receipt = await self._deletes.submit(wanted, f"operator:{name}")
        record = receipt.record
        log.info(
            "delete_submitted",
            delete_id=record.delete_id,
            kind=record.kind,
            by=f"operator:{name}",
            created=receipt.created,
            dry_run=wanted.dry_run,
            reason=record.reason,
            peer=request.remote,
        )
        return json_response(receipt)

    async def _list(self, request: web.Request) -> web.Response:
        after = read_cursor(request.query, DELETES)
        items, following = await self._deletes.list_page(after, _LIMIT.read(request.query))
        return json_response(DeletePage(items=items, next=following))

    async def _show(self, request: web.Request) -> web.Response:
        delete_id = request.match_info["id"]
        view = await self._deletes.show(delete_id)
        if view is None:
            raise HttpRefusal(
                ErrorCode.NOT_FOUND, f"no such delete: list them, delete_id=`{delete_id}`"
            )
        return json_response(view)
