"""The page at /docs: the endpoints of the OpenAPI document. It needs no network and no script."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from unskew.report.templates import inline_file, render

STYLE = inline_file("serve/http/templates/docs.css")
Schema = Mapping[str, Any]  # a part of the document, whose form OpenAPI defines


class Field(NamedTuple):
    """A parameter of an endpoint, or a field of its body."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class Endpoint:
    """What the page says about one method of a path."""

    method: str
    path: str
    description: str
    fields: list[Field]
    examples: list[str]
    statuses: list[str]


def docs_page(document: Schema) -> str:
    """The page of an OpenAPI document."""
    schemas = document.get("components", {}).get("schemas", {})
    endpoints = [
        _endpoint(path, method, operation, schemas)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    info = {"description": ""} | document["info"]
    return render("serve/http/templates/docs.html", info=info, endpoints=endpoints)


def _endpoint(path: str, method: str, operation: Schema, schemas: Schema) -> Endpoint:
    parameters = [
        Field(
            f"{parameter['name']} ({parameter['in']})",
            _type(parameter["schema"], schemas),
            parameter.get("description", ""),
        )
        for parameter in operation.get("parameters", ())
    ]
    content = operation.get("requestBody", {}).get("content", {})
    body = _resolved(content.get("application/json", {}).get("schema", {}), schemas)
    fields = [
        Field(name, _type(schema, schemas), schema.get("description", ""))
        for name, schema in body.get("properties", {}).items()
    ]
    return Endpoint(
        method.upper(),
        path,
        operation.get("description") or operation.get("summary", ""),
        parameters + fields,
        [json.dumps(example, indent=1, ensure_ascii=False) for example in body.get("examples", ())],
        list(operation.get("responses", {})),
    )


def _resolved(schema: Schema, schemas: Schema) -> Schema:
    name = schema.get("$ref", "").rpartition("/")[2]
    return schemas[name] if name else schema


def _type(schema: Schema, schemas: Schema) -> str:
    """The type of a field, in a few words."""
    if alternatives := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(_type(alternative, schemas) for alternative in alternatives))
    resolved = _resolved(schema, schemas)
    if resolved.get("type") == "array":
        return f"list of {_type(resolved['items'], schemas)}"
    return str(resolved.get("format") or resolved.get("title" if "$ref" in schema else "type", "any"))
