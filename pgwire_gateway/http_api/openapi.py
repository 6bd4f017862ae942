"""The OpenAPI document of the API; a test compares it with the routes, and answers with its schemas.

Source: OpenAPI Specification 3.1; docs/http.md.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from aiohttp import web

from ...engine.version import VERSION
from .event_messages import CONTENT_TYPE, EVENTS_MAX
from .failures import JSON, json_answer
from .polls import ARROW, EVENTS_DEFAULT, WAIT_S_MAX
from .polls import EVENTS_MAX as POLL_EVENTS_MAX
from .publishing import PRODUCER, SEQUENCE
from .requests import NDJSON
from .sql_route import PARAMETERS_MAX, ROWS_DEFAULT, ROWS_MAX, TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX
from .system_views import ROWS_DEFAULT as VIEW_ROWS_DEFAULT
from .system_views import ROWS_MAX as VIEW_ROWS_MAX

if TYPE_CHECKING:
    from .http_port import HttpPort

Schema = dict[str, Any]
STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
LSN: Schema = {"type": "integer", "format": "int64", "minimum": 0}
ANYTHING: Schema = {}


def _maybe(kind: str) -> Schema:
    return {"type": [kind, "null"]}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


EVENT = _object(
    {
        "lsn": LSN,
        "partition": INTEGER,
        "op": STRING,
        "table_name": STRING,
        "key": ANYTHING,
        "before": ANYTHING,
        "after": ANYTHING,
        "commit_time": {"type": "string", "format": "date-time"},
        "txid": INTEGER,
        "tx_seq": INTEGER,
        "tx_last": {"type": "boolean"},
        "schema_version": INTEGER,
        "headers": _maybe("object"),
    }
)
SCHEMAS: dict[str, Schema] = {
    "Error": _object(
        {
            "error": _object(
                {
                    "sqlstate": {"type": "string", "pattern": "^[0-9A-Z]{5}$"},
                    "message": STRING,
                    "detail": _maybe("string"),
                    "hint": _maybe("string"),
                    "position": _maybe("integer"),
                }
            )
        }
    ),
    "Event": EVENT,
    "Change": _object(
        {
            "_change_type": STRING,
            "_commit_version": INTEGER,
            "_commit_timestamp": STRING,
            "_lsn": LSN,
            "_partition": INTEGER,
        }
    )
    | {"additionalProperties": True},
    "Partition": _object(
        {
            "partition": INTEGER,
            "read_up_to": LSN,
            "first_retained": _maybe("integer"),
            "last_lsn": _maybe("integer"),
            "events_ahead": INTEGER,
        }
    ),
    "Batch": _object(
        {
            "events": _list({"oneOf": [_ref("Event"), _ref("Change")]}),
            "partitions": _list(_ref("Partition")),
            "position": STRING,
            "truncated": {"type": "boolean"},
        }
    ),
    "Stream": _object(
        {
            "name": STRING,
            "schema": STRING,
            "kind": {"enum": ["stream", "topic"]},
            "tables": _list(STRING),
            "operations": STRING,
            "filter": _maybe("string"),
            "partitions": INTEGER,
            "first_lsn": _maybe("integer"),
            "last_lsn": _maybe("integer"),
            "events": INTEGER,
            "bytes": INTEGER,
            "retention": _maybe("string"),
            "retention_bytes": _maybe("integer"),
            "compaction": STRING,
            "last_event_at": _maybe("string"),
            "unpublished_events": INTEGER,
            "unpublished_seconds": {"type": "number"},
            "created_at": STRING,
            "comment": _maybe("string"),
        }
    ),
    "Group": _object(
        {
            "schema": STRING,
            "stream": STRING,
            "group": STRING,
            "start": STRING,
            "on_gap": STRING,
            "session_timeout": STRING,
            "created_at": STRING,
            "lag_events": INTEGER,
            "lag_seconds": _maybe("number"),
            "members": INTEGER,
            "parked": INTEGER,
            "released": INTEGER,
            "partitions": _list(
                _object(
                    {
                        "partition": INTEGER,
                        "committed_lsn": LSN,
                        "last_lsn": LSN,
                        "lag_events": INTEGER,
                        "lag_seconds": _maybe("number"),
                        "member": _maybe("string"),
                    }
                )
            ),
        }
    ),
    "Commit": _object(
        {"group": STRING},
        {"member": STRING, "offsets": {"type": "object", "additionalProperties": LSN}},
    ),
    "NewEvent": _object({"payload": ANYTHING}, {"key": ANYTHING, "headers": _maybe("object")})
    | {"additionalProperties": False},
    "Published": _object(
        {"events": _list(_object({"partition": INTEGER, "lsn": LSN})), "notices": _list(STRING)}
    ),
    "Statement": _object(
        {"sql": STRING},
        {
            "parameters": {"type": "array", "maxItems": PARAMETERS_MAX},
            "limit": {"type": "integer", "minimum": 1, "maximum": ROWS_MAX, "default": ROWS_DEFAULT},
            "timeout_ms": {
                "type": "integer",
                "minimum": 1,
                "maximum": TIMEOUT_MS_MAX,
                "default": TIMEOUT_MS_DEFAULT,
            },
        },
    ),
    "Rows": _object(
        {
            "columns": _list(_object({"name": STRING, "type": STRING})),
            "rows": _list({"type": "array"}),
            "command": STRING,
            "truncated": {"type": "boolean"},
            "notices": _list(_object({"severity": STRING, "sqlstate": STRING, "message": STRING})),
        }
    ),
}


def _query(name: str, schema: Schema, about: str) -> Schema:
    return {"name": name, "in": "query", "schema": schema, "description": about}


def _header(name: str, schema: Schema, about: str) -> Schema:
    return {"name": name, "in": "header", "schema": schema, "description": about}


def _path(name: str) -> Schema:
    about = 'A name as in SQL: orders, sales.orders or "My Stream".'
    return {"name": name, "in": "path", "required": True, "schema": STRING, "description": about}


def _number(low: int, high: int, default: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high, "default": default}


READ = [
    _path("stream"),
    _query("group", STRING, "The consumer group as which to read; not together with after."),
    _query("member", STRING, "The group's member."),
    _query("after", STRING, "The position after which to read: an LSN, or a map of LSNs by partition."),
    _query("partition", {"type": "string", "pattern": "^[0-9]+(,[0-9]+)*$"}, "The only partitions to read."),
    _query("where", STRING, "A predicate over the columns of the events."),
    _query(
        "envelope", {"enum": ["json", "changes"], "default": "json"}, "Events, or the table's typed rows."
    ),
]


def _answer(about: str, **kinds: Schema) -> Schema:
    content = {kind: {"schema": schema} for kind, schema in kinds.items()}
    return {"description": about, "content": content}


def _operation(
    about: str,
    answer: Schema,
    parameters: list[Schema] | None = None,
    body: Schema | None = None,
    *,
    open_to_all: bool = False,
) -> Schema:
    operation: Schema = {
        "summary": about,
        "responses": {"200": answer, "default": _answer("An error.", **{JSON: _ref("Error")})},
    }
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    if open_to_all:
        operation["security"] = []
    return operation


def _body(name: str) -> Schema:
    return {JSON: {"schema": _ref(name)}}


def _console_file(*kinds: str) -> Schema:
    file: Schema = {"name": "file", "in": "path", "required": True, "schema": STRING}
    answer = _answer("The file.", **dict.fromkeys(kinds, STRING))
    return _operation("A file of the console", answer, [file], open_to_all=True)


OPERATIONS: dict[tuple[str, str], Schema] = {
    ("GET", "/v1/streams"): _operation(
        "The streams and topics that the user may see",
        _answer("The streams.", **{JSON: _object({"streams": _list(_ref("Stream"))})}),
    ),
    ("GET", "/v1/groups"): _operation(
        "The consumer groups that the user may see, with their lag",
        _answer("The groups.", **{JSON: _object({"groups": _list(_ref("Group"))})}),
    ),
    ("GET", "/v1/streams/{stream}/events"): _operation(
        "Events as they are committed (Server-Sent Events)",
        _answer("The events, without end.", **{CONTENT_TYPE: STRING}),
        [
            *READ,
            _query("limit", _number(1, EVENTS_MAX, 100), "For a group: events that are sent uncommitted."),
            _header("Last-Event-ID", STRING, "The id of the last received message; it overrides after."),
        ],
    ),
    ("GET", "/v1/streams/{stream}/poll"): _operation(
        "The next events, at once or as soon as there are any",
        _answer("The events.", **{JSON: _ref("Batch"), NDJSON: STRING, ARROW: STRING}),
        [
            *READ,
            _query("limit", _number(1, POLL_EVENTS_MAX, EVENTS_DEFAULT), "The maximum number of rows."),
            _query("wait", _number(0, WAIT_S_MAX, 0), "Seconds to wait for an event."),
        ],
    ),
    ("POST", "/v1/streams/{stream}/commit"): _operation(
        "Commit a group's position: the given LSNs, or all that its member has read",
        _answer("It is committed.", **{JSON: _object({"committed": {"const": True}})}),
        [_path("stream")],
        _body("Commit"),
    ),
    ("POST", "/v1/topics/{topic}"): _operation(
        "Publish one or several events, in one transaction",
        _answer("Their places.", **{JSON: _ref("Published")}),
        [
            _path("topic"),
            _header(PRODUCER, STRING, "The producer, which numbers its requests."),
            _header(SEQUENCE, LSN, "The request's number: a repetition is acknowledged and not stored."),
        ],
        {
            JSON: {"schema": {"oneOf": [_ref("NewEvent"), _list(_ref("NewEvent"))]}},
            NDJSON: {"schema": STRING},
        },
    ),
    ("POST", "/v1/sql"): _operation(
        "Run one statement", _answer("Its rows.", **{JSON: _ref("Rows")}), None, _body("Statement")
    ),
    ("GET", "/v1/views"): _operation(
        "The names of the views of schema ducktail, and the user who asks",
        _answer("The names.", **{JSON: _object({"views": _list(STRING), "user": STRING})}),
    ),
    ("GET", "/v1/views/{view}"): _operation(
        "The rows of such a view that the user may see",
        _answer("Its rows.", **{JSON: _ref("Rows")}),
        [
            {"name": "view", "in": "path", "required": True, "schema": STRING},
            _query("limit", _number(1, VIEW_ROWS_MAX, VIEW_ROWS_DEFAULT), "The maximum number of rows."),
        ],
    ),
    ("GET", "/v1/openapi.json"): _operation(
        "This document", _answer("The document.", **{JSON: {"type": "object"}}), open_to_all=True
    ),
    ("GET", "/metrics"): _operation(
        "Metrics in Prometheus' text format, for superusers",
        _answer("The metrics.", **{"text/plain": STRING}),
    ),
    ("GET", "/live"): _operation(
        "200 while the process is responsive", _answer("Live.", **{"text/plain": STRING}), open_to_all=True
    ),
    ("GET", "/ready"): _operation(
        "200 while statements are answered, else 503",
        _answer("Ready.", **{"text/plain": STRING}),
        open_to_all=True,
    ),
    ("GET", "/"): _operation("The console", _answer("The page.", **{"text/html": STRING}), open_to_all=True),
    ("GET", "/console/{file}"): _console_file("text/javascript", "text/css", "image/svg+xml"),
    ("GET", "/console/views/{file}"): _console_file("text/javascript"),
}


@cache
def document() -> Schema:
    """The OpenAPI document."""
    paths: dict[str, Schema] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "ducktail", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "password": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{"password": []}, {"token": []}],
    }


async def show_document(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """GET /v1/openapi.json: the document of this API."""
    return json_answer(document())
