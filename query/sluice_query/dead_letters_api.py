"""`/v1/dead-letters`: the accepted batches that could not be ingested."""

from typing import Final

from aiohttp import web

from sluice_query.dead_letter_list import DeadLetterList, list_dead_letters
from sluice_query.read_endpoints import read_endpoint
from sluice_query.runner import QueryRunner
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.parameters import AgentParameter, IntegerParameter, check_names

LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 500
_AGENT: Final = AgentParameter()
_LIMIT: Final = IntegerParameter(name="limit", default=LIMIT_DEFAULT, maximum=LIMIT_MAX)
_PARAMETERS: Final = (_AGENT, _LIMIT)


class DeadLettersApi:
    """The endpoint of the dead letters."""

    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoint."""
        return (
            read_endpoint(
                path="/v1/dead-letters",
                handler=self._list,
                summary="Return the batches that could not be ingested, and why",
                parameters=_PARAMETERS,
                result=DeadLetterList,
            ),
        )

    async def _list(self, request: web.Request) -> web.StreamResponse:
        check_names(request.query, _PARAMETERS)
        agent, limit = _AGENT.read(request.query), _LIMIT.read(request.query)
        async with self._runner.running:
            found = await list_dead_letters(self._runner.searcher, agent, limit)
        return json_response(found)
