"""The page of the playground: what the shoppers do, and the debiasing strength of their lists."""

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from unskew.core.config import Document
from unskew.playground.shoppers import Shoppers
from unskew.serve.http.metrics import Metrics
from unskew.serve.http.middleware import LOOPBACK, Gate

PAGE = Path(__file__).parent / "page"
# The colours and the frame are those of the page of the service.
SERVICE_PAGE = Path(__file__).parents[1] / "serve" / "page"


def create_app(shoppers: Shoppers, service: str, hosts: tuple[str, ...] | None = LOOPBACK) -> Gate:
    """Create the application of the page.

    Parameters
    ----------
    shoppers
        The users whose days the page shows.
    service
        The address of the service, to which the page links.
    hosts
        The names by which the page may be called; None is any name.

    Returns
    -------
    Gate
        The ASGI application.
    """

    async def page(request: Request) -> FileResponse:
        return FileResponse(PAGE / "index.html")

    async def state(request: Request) -> JSONResponse:
        return JSONResponse(shoppers.state() | {"service": service})

    async def set_debias(request: Request) -> JSONResponse:
        strength = await _strength(request)
        if strength is None:
            return JSONResponse({"error": "debias: expected a number from 0 to 1"}, 422)
        shoppers.debias = strength
        return JSONResponse({"debias": strength})

    routes = [
        Route("/", page),
        Route("/v1/playground", state),
        Route("/v1/playground/debias", set_debias, methods=["PUT"]),
        Mount("/static/service", StaticFiles(directory=SERVICE_PAGE)),
        Mount("/static", StaticFiles(directory=PAGE)),
    ]
    return Gate(Starlette(routes=routes), Metrics(), hosts=hosts)


async def _strength(request: Request) -> float | None:
    """The debiasing strength of a request, None if it is none."""
    try:
        document: Document = await request.json()
        value = document["debias"]
    except (ValueError, KeyError, TypeError):
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= 1 else None
