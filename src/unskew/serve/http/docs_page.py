"""The page at /docs: the endpoints, in plain HTML, from the OpenAPI document. It needs no network and no
script."""

import json
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
section { border-top: 1px solid #8885; padding: 0.5rem 0 1rem; }
h2 { font-size: 1.05rem; font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
h2 b { display: inline-block; min-width: 4.5rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: 0.2rem 0.8rem 0.2rem 0; }
pre { overflow-x: auto; padding: 0.8rem; background: #8882; border-radius: 6px; }
code { font-family: ui-monospace, monospace; }
"""


def docs_page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    info = document["info"]
    sections = [
        _section(path, method, about, document)
        for path, methods in document["paths"].items()
        for method, about in methods.items()
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(info["title"])}</title><link rel="stylesheet" href="/docs/style.css"></head>
<body><main><h1>{escape(info["title"])} {escape(info["version"])}</h1>
<p>{escape(info.get("description", ""))} <a href="/openapi.json">The OpenAPI document</a>.</p>
{"".join(sections)}</main></body></html>
"""


def _section(path: str, method: str, about: dict[str, Any], document: dict[str, Any]) -> str:
    said = escape(about.get("description") or about.get("summary") or "")
    rows = [
        (
            f"{parameter['name']} ({parameter['in']})",
            _kind(parameter["schema"], document),
            parameter.get("description"),
        )
        for parameter in about.get("parameters", ())
    ]
    body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    example = ""
    if body is not None:
        whole = _resolved(body, document)
        rows += [
            (name, _kind(field, document), field.get("description"))
            for name, field in whole.get("properties", {}).items()
        ]
        example = "".join(
            f"<pre><code>{escape(json.dumps(one, indent=1, ensure_ascii=False))}</code></pre>"
            for one in whole.get("examples", ())
        )
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td><td>{escape(words or '')}</td></tr>"
        for name, kind, words in rows
    )
    table = f"<table><thead><tr><th>name</th><th>type</th><th>meaning</th></tr></thead>{cells}</table>"
    statuses = ", ".join(about.get("responses", {}))
    return (
        f"<section><h2><b>{method.upper()}</b> {escape(path)}</h2><p>{said}</p>"
        f"{table if rows else ''}{example}<p>Answers: {escape(statuses)}</p></section>\n"
    )


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return dict(document["components"]["schemas"][name]) if name else schema


def _kind(schema: dict[str, Any], document: dict[str, Any]) -> str:
    """The type of a field, in a few words."""
    several = schema.get("anyOf")
    if several:
        return " or ".join(dict.fromkeys(_kind(each, document) for each in several))
    whole = _resolved(schema, document)
    if whole.get("type") == "array":
        return f"list of {_kind(whole['items'], document)}"
    return str(whole.get("format") or whole.get("title" if "$ref" in schema else "type", "any"))
