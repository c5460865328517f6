import msgspec
from aiohttp import web

from sluice_web.application import openapi_document
from sluice_web.endpoints import Endpoint
from sluice_web.parameters import IntegerParameter, Page
from sluice_web.problems import Problem


class Color(msgspec.Struct, frozen=True):
    name: str


class UsedColor(Problem, frozen=True, kw_only=True):
    owner: str


async def respond(_: web.Request) -> web.Response:
    return web.Response()


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/colors",
        handler=respond,
        summary="List colors",
        parameters=(IntegerParameter(name="limit", default=1, maximum=9),),
        result=Page[Color],
    ),
    Endpoint(
        method="POST",
        path="/v1/colors/{id}",
        handler=respond,
        summary="Store a color",
        body=bytes,
        body_type="image/png",
        result=Color,
        problems={"409": "The color is in use"},
        problem_types={"409": UsedColor},
    ),
)


def test_paths_parameters_and_bodies_follow_from_the_endpoints() -> None:
    document = openapi_document("colors", ENDPOINTS)
    assert document["openapi"] == "3.1.0"
    assert document["info"]["title"] == "colors"
    listing = document["paths"]["/v1/colors"]["get"]
    (limit,) = listing["parameters"]
    assert (limit["name"], limit["in"], limit["schema"]["maximum"]) == ("limit", "query", 9)
    storing = document["paths"]["/v1/colors/{id}"]["post"]
    assert storing["parameters"] == [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    assert storing["requestBody"]["content"] == {
        "image/png": {"schema": {"type": "string", "format": "binary"}}
    }


def test_every_reference_has_a_schema() -> None:
    document = openapi_document("colors", ENDPOINTS)
    text = msgspec.json.encode(document).decode()
    names = set(document["components"]["schemas"])
    assert {"Color", "Problem", "UsedColor"} <= names
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.partition('"')[0] in names


def test_errors_are_problem_documents() -> None:
    document = openapi_document("colors", ENDPOINTS)
    refused = document["paths"]["/v1/colors"]["get"]["responses"]["default"]["content"]
    assert refused == {
        "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
    }
    used = document["paths"]["/v1/colors/{id}"]["post"]["responses"]["409"]["content"]
    assert used["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/UsedColor"}
