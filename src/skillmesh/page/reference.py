"""The API's description as a page: from the OpenAPI document, without scripts, readable offline."""

from __future__ import annotations

import json
from typing import Any

from skillmesh.common.text import safe_html

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: HTTP API</title>
<link rel="icon" href="/static/icon.svg">
<link rel="stylesheet" href="/static/app.css">
</head>
<body>
<main class="reference">
<h1>{title}: HTTP API</h1>
<p>{about}</p>
<p>The same as data: <a href="/openapi.json">openapi.json</a>. <a href="/">Back to the page</a></p>
{groups}
</main>
</body>
</html>
"""


def reference_page(schema: dict[str, Any]) -> str:
    """Return the page for an OpenAPI document."""
    groups: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["other"])[0]
            groups.setdefault(tag, []).append(_operation(method, path, operation, schema))
    return _PAGE.format(
        title=safe_html(schema["info"]["title"]),
        about=safe_html(schema["info"].get("description", "")),
        groups="\n".join(f"<h2>{safe_html(tag)}</h2>\n{''.join(each)}" for tag, each in groups.items()),
    )


def _operation(method: str, path: str, operation: dict[str, Any], schema: dict[str, Any]) -> str:
    about = (operation.get("description") or "").partition("\n")[0]
    parameters = "".join(
        f"<li><code>{safe_html(each['name'])}</code> ({safe_html(each['in'])})</li>"
        for each in operation.get("parameters", ())
    )
    body = operation.get("requestBody", {}).get("content", {})
    answers = {code: each for code, each in operation["responses"].items() if code.startswith("2")}
    return (
        f"<details><summary><code>{method.upper()} {safe_html(path)}</code> {safe_html(about)}</summary>"
        + (f"<ul>{parameters}</ul>" if parameters else "")
        + "".join(_content(f"Body: {kind}", each.get("schema", {}), schema) for kind, each in body.items())
        + "".join(
            _content(f"{code}: {kind}", each.get("schema", {}), schema)
            for code, answer in answers.items()
            for kind, each in answer.get("content", {}).items()
        )
        + "</details>\n"
    )


def _content(title: str, shape: dict[str, Any], schema: dict[str, Any]) -> str:
    name = shape.get("$ref", "").rpartition("/")[2]
    shown = schema.get("components", {}).get("schemas", {}).get(name, shape)
    fields = {name: _kind(field) for name, field in shown.get("properties", {}).items()} or _kind(shown)
    return f"<p>{safe_html(title)}</p><pre>{safe_html(json.dumps(fields, indent=1, ensure_ascii=False))}</pre>"


def _kind(field: dict[str, Any]) -> str:
    """Return a schema's type in a few words."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "anyOf" in field:
        return " or ".join(map(_kind, field["anyOf"]))
    if "enum" in field:
        return " or ".join(map(repr, field["enum"]))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    return str(field.get("format") or field.get("type") or "anything")
