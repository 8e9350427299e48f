from __future__ import annotations

import socket
import textwrap
from typing import Any, NoReturn

import pytest

from gateway.config.http_tools import HttpServiceConfig
from gateway.errors import ConfigError
from gateway.tools.providers.http_operation import Operation
from gateway.tools.providers.openapi import base_url_of, openapi_operations
from gateway.tools.providers.openapi_document import read_openapi
from gateway.tools.spec import TOOL_NAME_PATTERN
from gateway.tools.validate import ArgumentValidator

CRM = """
openapi: 3.0.3
info: {title: CRM, version: "1"}
servers: [{url: "https://{region}.crm.example/v2", variables: {region: {default: eu}}}]
paths:
  /customers/{id}:
    parameters:
      - {$ref: "#/components/parameters/Id"}
    get:
      operationId: getCustomer
      summary: Look up a customer.
      description: Use it when the user names a customer.
      parameters:
        - {name: fields, in: query, explode: false, schema: {type: array, items: {type: string}}}
        - {name: X-Tenant, in: header, required: true, schema: {type: string}}
        - {name: Authorization, in: header, required: true, schema: {type: string}}
    delete: {operationId: customers.delete}
  /customers:
    post:
      operationId: createCustomer
      requestBody:
        required: true
        content:
          application/json: {schema: {$ref: "#/components/schemas/Customer"}}
    get:
      parameters: [{name: "filter[status]", in: query, schema: {type: string, enum: [open]}}]
components:
  parameters:
    Id: {name: id, in: path, required: true, description: The number., schema: {type: string}}
  schemas:
    Customer:
      type: object
      required: [id, name]
      properties:
        id: {type: string, readOnly: true}
        name: {type: string, example: Ann}
        note: {type: string, nullable: true}
        age: {type: integer, minimum: 0, exclusiveMinimum: true}
        parent: {$ref: "#/components/schemas/Customer"}
"""


def operations(text: str, **config: Any) -> dict[str, Operation]:
    document = read_openapi("crm.yaml", textwrap.dedent(text).encode())
    made = openapi_operations(document, HttpServiceConfig(openapi="crm.yaml", **config))
    return {each.name: each for each in made}


def problems(text: str, **config: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        operations(text, **config)
    return [str(each) for each in caught.value.problems]


def small(more: str = "", path: str = "/a") -> str:
    return f"openapi: 3.1.0\npaths:\n  {path}:\n    get:\n      operationId: get_a\n{textwrap.indent(more, ' ' * 6)}"


def test_operations_become_tools_whose_arguments_know_their_places() -> None:
    found = operations(CRM, headers={"x-tenant": "t"})
    assert list(found) == ["getCustomer", "customers_x2e_delete", "get_customers", "createCustomer"]
    get = found["getCustomer"]
    assert get.description == "Look up a customer. Use it when the user names a customer."
    assert get.origin == "crm.yaml:9"
    assert {(each.argument, each.place, each.explode) for each in get.placed} == {
        ("id", "path", False),
        ("fields", "query", False),
    }
    assert get.parameters["required"] == ["id"]
    assert get.parameters["properties"]["id"] == {"type": "string", "description": "The number."}
    assert [each.writes for each in found.values()] == [False, True, False, True]
    assert [each.name for each in found["get_customers"].placed] == ["filter[status]"]


def test_every_tool_has_a_name_and_a_schema_that_stands_alone() -> None:
    for each in operations(CRM).values():
        assert TOOL_NAME_PATTERN.fullmatch(each.name)
        ArgumentValidator(each.parameters)


def test_a_body_of_plain_properties_is_flat_and_30_becomes_json_schema() -> None:
    create = operations(CRM)["createCustomer"]
    properties = create.parameters["properties"]
    assert list(properties) == ["name", "note", "age", "parent"]
    assert create.parameters["required"] == ["name"]
    assert properties["note"] == {"type": ["string", "null"]}
    assert properties["age"] == {"type": "integer", "exclusiveMinimum": 0}
    assert properties["parent"] == {"$ref": "#/$defs/Customer"}
    assert create.parameters["$defs"]["Customer"]["required"] == ["name"]
    validator = ArgumentValidator(create.parameters)
    assert validator.validate({"name": "Ann", "note": None, "parent": {"name": "Bo"}})


def test_operations_are_chosen_by_name_id_and_path() -> None:
    assert list(operations(CRM, operations=("getCustomer",))) == ["getCustomer"]
    assert list(operations(CRM, operations=("GET *", "!get_*"))) == ["getCustomer"]
    assert list(operations(CRM, operations=("!customers.delete", "!GET *"))) == ["createCustomer"]
    assert problems(CRM, operations=("getCustomr",)) == [
        "crm.yaml:0: `operations` names `getCustomr`, and no operation is called so; did you mean `getCustomer`?"
    ]


def test_the_server_is_the_first_one_with_its_defaults() -> None:
    assert base_url_of(read_openapi("crm.yaml", CRM.encode())) == "https://eu.crm.example/v2"
    for servers in ("", "servers: []", "servers: [{url: /v2}]", "servers: [{url: 'https://u:p@h/'}]"):
        with pytest.raises(ConfigError, match="base_url"):
            base_url_of(read_openapi("x.yaml", f"openapi: 3.0.0\n{servers}".encode()))


EXTERNAL = """
openapi: 3.0.0
paths:
  /a: {$ref: "other.yaml#/a"}
components:
  schemas:
    A: {$ref: "file:///proc/self/environ"}
    B: {$ref: "http://169.254.169.254/latest/"}
    C: {properties: {deep: {items: {$ref: ./other.yaml}}}}
    D: {properties: {$ref: {type: string}}, example: {$ref: "http://data.example/"}}
"""


def test_b032_references_that_lead_out_are_refused_with_their_place_and_nothing_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reached(*args: object, **kwargs: object) -> NoReturn:
        raise AssertionError(f"something was read: {args}")

    monkeypatch.setattr("builtins.open", reached)
    monkeypatch.setattr("io.open", reached)
    monkeypatch.setattr("os.open", reached)
    monkeypatch.setattr(socket, "getaddrinfo", reached)
    found = problems(EXTERNAL)
    places = ["components.schemas.A", "components.schemas.B", "components.schemas.C.properties.deep.items", "paths./a"]
    assert [each.split("`")[1] for each in found] == [f"{place}.$ref" for place in places]
    assert found[0].startswith("crm.yaml:7: ")
    assert all("leads out of this document" in each for each in found)


def test_b032_a_long_chain_of_references_ends() -> None:
    chain = "".join(f"    S{n}: {{$ref: '#/components/schemas/S{n + 1}'}}\n" for n in range(200))
    text = f"components:\n  schemas:\n{chain}    S200: {{type: string}}\n"
    parameter = "parameters: [{name: q, in: query, schema: {$ref: '#/components/schemas/S0'}}]"
    made = operations(f"{small(parameter)}\n{text}")["get_a"]
    ArgumentValidator(made.parameters)
    assert len(made.parameters["$defs"]) == 201
    nested = "{allOf: [" * 200 + "{type: string}" + "]}" * 200
    assert "deep" in problems(small(f"parameters: [{{name: q, in: query, schema: {nested}}}]"))[0]


def test_b032_references_that_lead_in_circles_or_nowhere_are_named() -> None:
    text = (
        small("requestBody: {$ref: '#/components/requestBodies/A'}")
        + "\ncomponents: {requestBodies: {A: {$ref: '#/components/requestBodies/A'}}}"
    )
    assert "a chain of more than 64 references" in problems(text)[0]
    [problem] = problems(small("parameters: [{$ref: '#/nowhere'}]"))
    assert problem.startswith("crm.yaml:4: `paths./a.get`: '#/nowhere' leads nowhere in this document")


@pytest.mark.parametrize(
    ("more", "path", "why"),
    [
        ("parameters: [{name: c, in: cookie, required: true}]", "/a", "cookies are not sent"),
        ("parameters: [{name: p, in: path, required: true, style: matrix}]", "/a/{p}", "'matrix'"),
        ("parameters: [{name: q, in: body}]", "/a", "'body'"),
        ("", "/a/{p}", "`{p}`"),
        ("", "/a/../b", "steps to another folder"),
        ("", '"@evil.example/a"', "does not begin with `/`"),
        ("", ".evil.example/a", "does not begin with `/`"),
        ("requestBody: {required: true, content: {multipart/form-data: {}}}", "/a", "'multipart/form-data'"),
    ],
)
def test_what_cannot_be_sent_as_described_is_refused_with_the_way_out(more: str, path: str, why: str) -> None:
    [problem] = problems(small(more, path))
    assert why in problem
    assert problem.endswith('leave it out with `operations: ["!get_a"]`')


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("swagger: '2.0'", "only OpenAPI 3.0 and 3.1"),
        ("openapi: 4.0.0", "4.0.0"),
        ("- a", "a mapping"),
        ("a: [", ""),
        ('{"openapi": "3.0.0", "paths": {', ""),
    ],
)
def test_what_is_no_openapi_document_is_told(text: str, why: str) -> None:
    assert why in problems(text)[0]


def test_json_is_read_too() -> None:
    text = '{\n\t"openapi": "3.1.0",\n\t"paths": {"/a": {"get": {"operationId": "a"}}}\n}'
    assert list(operations(text)) == ["a"]
