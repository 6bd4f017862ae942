"""The OpenAPI document: valid, of exactly the routes that there are, and true of their answers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from http_client import Answer, HttpClient
from jsonschema import Draft202012Validator

from ducktail.pgwire_gateway.http_api.openapi import OPERATIONS, document
from ducktail.pgwire_gateway.http_api.routes import ROUTES


def test_the_document_is_valid(client: HttpClient) -> None:
    served = client.get("/v1/openapi.json").json()
    assert served == document()
    assert (served["openapi"], served["security"]) == ("3.1.0", [{"password": []}, {"token": []}])
    Draft202012Validator.check_schema({"$defs": served["components"]["schemas"]})
    for path, operations in served["paths"].items():
        for operation in operations.values():
            parameters = operation.get("parameters", [])
            in_path = {one["name"] for one in parameters if one["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            for one in parameters:
                Draft202012Validator.check_schema(one["schema"])
            assert {"200", "default"} == set(operation["responses"])
    text = json.dumps(served)
    for name in re.findall(r'"#/components/schemas/(\w+)"', text):
        assert name in served["components"]["schemas"]


def test_it_has_exactly_the_routes() -> None:
    assert {(method, path) for method, path, _ in ROUTES} == set(OPERATIONS)


@pytest.mark.parametrize("operation", [key for key in OPERATIONS if key[0] == "GET"], ids=" ".join)
def test_it_has_exactly_the_parameters(client: HttpClient, topic: str, operation: tuple[str, str]) -> None:
    """A route refuses a parameter with the list of those that it knows."""
    path = operation[1].replace("{stream}", topic).replace("{view}", "streams")
    path = path.replace("views/{file}", "views/overview.js").replace("{file}", "app.js")
    if path in ("/live", "/ready", "/v1/openapi.json"):
        return
    described = {one["name"] for one in OPERATIONS[operation].get("parameters", ()) if one["in"] == "query"}
    message = client.get(path, nothing=1).json()["error"]["message"]
    known = message.rpartition("known are ")[2].split(", ")
    assert {name for name in known if name != "none"} == described


def check(answer: Answer, method: str, path: str) -> Any:
    """Compare an answer with its schema, and return its body."""
    content = OPERATIONS[method, path]["responses"]["200" if answer.status == 200 else "default"]["content"]
    kind = answer.headers["Content-Type"]
    schema = {**content[kind]["schema"], "components": document()["components"]}
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(answer.json())
    return answer.json()


def test_the_answers_are_as_described(client: HttpClient, table: str, topic: str) -> None:
    poll, commit = "/v1/streams/{stream}/poll", "/v1/streams/{stream}/commit"
    client.sql(f"INSERT INTO {table} VALUES (1, 'a', 1.5), (2, NULL, NULL)")
    published = client.post(f"/v1/topics/{topic}", [{"payload": [1], "key": "k", "headers": {"a": 1}}])
    assert check(published, "POST", "/v1/topics/{topic}")["events"]
    assert check(client.get("/v1/streams"), "GET", "/v1/streams")["streams"]
    assert check(client.get("/v1/groups"), "GET", "/v1/groups")["groups"]
    for query in ({}, {"group": "g", "member": "m"}, {"envelope": "changes"}, {"after": 10**6}):
        check(client.get(f"/v1/streams/{table}_s/poll", **query), "GET", poll)
    assert check(client.get(f"/v1/streams/{topic}/poll"), "GET", poll)["events"]
    check(client.post(f"/v1/streams/{table}_s/commit", {"group": "g", "member": "m"}), "POST", commit)
    check(client.post("/v1/sql", {"sql": "SELECT 1, 'a'"}), "POST", "/v1/sql")
    check(client.post("/v1/sql", {"sql": "DROP TABLE IF EXISTS nothing_here"}), "POST", "/v1/sql")
    for failed in (client.post("/v1/sql", {"sql": "SELEC"}), client.get("/v1/streams", x=1)):
        check(failed, "POST", "/v1/sql")
    assert client.get("/v1/nothing").sqlstate == "42704"
