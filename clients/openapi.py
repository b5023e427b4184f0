"""The OpenAPI document of the service, which the TypeScript client is generated from.

    python clients/openapi.py     clients/openapi.json

Then `npm run generate` in clients/typescript. A test compares the document with the code.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import httpx

from unskew.serve.http.app import create_app
from unskew.serve.http.middleware import Gate
from unskew.serve.http.service import Service
from unskew.serve.store.store import open_store

FILE = Path(__file__).with_name("openapi.json")


def openapi() -> dict[str, Any]:
    """The document that a service gives, without the version of the package."""

    async def ask(app: Gate) -> dict[str, Any]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://docs") as client:
            document: dict[str, Any] = (await client.get("/openapi.json")).json()
            return document

    with tempfile.TemporaryDirectory() as scratch, open_store(Path(scratch) / "events.db") as store:
        document = asyncio.run(ask(create_app(Service("run", store), hosts=None)))
    document["info"]["version"] = "v1"
    return document


def text() -> str:
    """The document as it is stored."""
    return json.dumps(openapi(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
