"""The service over HTTP, as an ASGI application.

    app = create_app(service)      for uvicorn, or any other ASGI server

`unskew serve` does this and more: sockets, tokens, a graceful stop.
"""

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from unskew.core.errors import UnskewError
from unskew.serve.http import schemas
from unskew.serve.http.docs_page import STYLE, docs_page
from unskew.serve.http.logs import write_log
from unskew.serve.http.metrics import Metrics
from unskew.serve.http.middleware import LOOPBACK, Gate, Limits, error_document
from unskew.serve.http.request import Asked, Refused
from unskew.serve.http.service import Service
from unskew.serve.http.tokens import Tokens
from unskew.serve.store.events import BadEvent

PAGE = Path(__file__).parents[1] / "page"
DESCRIPTION = (
    "Recommendations from a trained run and from what happened a moment ago. What is recommended is recorded "
    "with the probability of being shown."
)
PASTS = {
    400: "The request is no HTTP or no JSON.",
    401: "A token is missing.",
    403: "The token may only read.",
    404: "It is not there.",
    405: "The path has other methods.",
    408: "The request came too slowly.",
    409: "It does not fit the model, its log, or what is under way.",
    413: "The body is too large.",
    421: "The service is not called by that name.",
    422: "A field is wrong.",
    503: "Not ready, or too busy; try again.",
}


class _AnyText(PathConvertor):
    """An id in a path: any text, with slashes and line breaks."""

    regex = "(?s:.*)"


register_url_convertor("id", _AnyText())


class _Static(StaticFiles):
    """Files of the page, which a browser asks for again only if they have changed."""

    def file_response(self, *arguments: Any, **more: Any) -> Response:
        made = super().file_response(*arguments, **more)
        made.headers["cache-control"] = "public, max-age=0, must-revalidate"
        return made

    def lookup_path(self, path: str) -> Any:
        try:
            return super().lookup_path(path)
        except ValueError:  # NUL in a name
            return "", None


def create_app(
    service: Service,
    *,
    tokens: Tokens | None = None,
    hosts: Iterable[str] | None = LOOPBACK,
    limits: Limits | None = None,
    report: Path | None = None,
    metrics: Metrics | None = None,
) -> Gate:
    """The application of a service.

    tokens: who may come in; None is everybody who can reach it.
    hosts: the names by which it may be called, so that no page on the web can point its own name to this
        machine; None is any name.
    limits: of the size of a body and the time of a request.
    report: a page that `unskew report --html` made, for /report. Whoever reaches the service may read it.
    metrics: what counts; by default new counters of its own.
    """
    metrics = metrics or Metrics()
    app = FastAPI(
        title="unskew",
        version=version("unskew"),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={code: {"model": schemas.ErrorAnswer, "description": said} for code, said in PASTS.items()},
    )
    _add_endpoints(app, service, metrics, report is not None)
    _add_pages(app, service, metrics, report)
    _add_errors(app)
    if tokens is not None:
        _say_tokens(app)
    return Gate(app, metrics, tokens, hosts, limits)


def _add_endpoints(app: FastAPI, service: Service, metrics: Metrics, has_report: bool) -> None:
    def listed(asked: Asked) -> JSONResponse:
        found = service.recommend(asked)
        metrics.count_list(found["source"])
        return JSONResponse(found)

    @app.post("/v1/recommendations", responses=_answer(schemas.RecommendationAnswer))
    def recommend(request: schemas.RecommendationRequest) -> JSONResponse:
        """Recommend items to a user, or after a history."""
        return listed(request.asked())

    @app.get("/v1/recommendations", responses=_answer(schemas.RecommendationAnswer))
    def recommend_to(
        user_id: Annotated[schemas.Id, Query()],
        k: Annotated[int, Query(ge=1, le=schemas.MOST_SHOWN)] = 10,
        debias: Annotated[float | None, Query(ge=0, le=1)] = None,
        log: bool = True,
    ) -> JSONResponse:
        """The same for curl. It records the list, too, unless `log` is false."""
        return listed(Asked(user_id=user_id, k=k, debias=debias, log=log))

    @app.post("/v1/events", responses=_answer(schemas.EventsAnswer))
    def append(request: schemas.EventsRequest) -> JSONResponse:
        """Store events, durably. They count from the next request on."""
        found = service.append(request.events)
        metrics.count_events(found["accepted"], found["duplicates"], len(found["rejected"]))
        return JSONResponse(found)

    @app.get("/v1/items", responses=_answer(schemas.ItemsAnswer))
    def items(
        query: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=schemas.MOST_FOUND)] = 20,
    ) -> JSONResponse:
        """Items whose title or id holds the query: the best matches first, then the most popular ones.
        Without a query, the most popular ones."""
        return JSONResponse(service.items(query, limit))

    @app.get("/v1/items/{item_id:id}", responses=_answer(schemas.ItemAnswer))
    def item(item_id: schemas.Id) -> JSONResponse:
        """What is known of an item."""
        return JSONResponse(service.item(item_id))

    @app.get("/v1/users/{user_id:id}", responses=_answer(schemas.UserAnswer))
    def user(user_id: schemas.Id) -> JSONResponse:
        """What is known of a user: the newest positives, and how much the store holds."""
        return JSONResponse(service.user(user_id))

    @app.delete("/v1/users/{user_id:id}", responses=_answer(schemas.ErasedAnswer))
    def erase(user_id: schemas.Id) -> JSONResponse:
        """Erase a user. The answer says what that does not cover."""
        return JSONResponse(service.erase(user_id))

    @app.get("/v1/model", responses=_answer(schemas.ModelAnswer))
    def about() -> JSONResponse:
        """The model, its log, and what it can do."""
        return JSONResponse(service.about() | {"report": has_report})

    @app.post(
        "/v1/model/reload",
        responses=_answer(schemas.Reload)
        | {202: {"model": schemas.Reload, "description": "It is under way."}},
    )
    def reload(wait: Annotated[float, Query(ge=0, le=25)] = 0.0) -> JSONResponse:
        """Load the run again, from where its link points to now, while requests go on with the one before.
        With `wait`, answer when it is done, or after so many seconds."""
        found = service.reload(wait)
        if found["state"] == "failed":
            raise Refused("run", f"{found['error']}; the run from before goes on")
        return JSONResponse(found, 202 if found["state"] == "loading" else 200)

    @app.get("/v1/monitor", responses=_answer(dict[str, Any]))
    def monitor(
        every: Annotated[str, Query(pattern=r"^[1-9][0-9]{0,3}[dhw]$")] = "1w",
        windows: Annotated[int, Query(ge=1, le=104)] = 26,
        sample: Annotated[int, Query(ge=1, le=2000)] = 200,
    ) -> JSONResponse:
        """What happened and what was shown, window by window (`unskew monitor`). It is made at most once a
        minute."""
        return JSONResponse(service.monitor(every, windows, sample))


def _add_pages(app: FastAPI, service: Service, metrics: Metrics, report: Path | None) -> None:
    @app.get("/health/live", responses=_answer(schemas.Health))
    def live() -> JSONResponse:
        """Whether the process lives."""
        return JSONResponse({"status": "live"})

    @app.get("/health/ready", responses=_answer(schemas.Health))
    def ready() -> JSONResponse:
        """Whether it can answer."""
        if not service.ready:
            raise Refused("service", "not ready", 503)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", response_class=PlainTextResponse)
    def measured() -> PlainTextResponse:
        """Counters in the text format of Prometheus."""
        gauges: dict[str, float] = {"ready": int(service.ready)}
        model: dict[str, str] = {}
        if service.ready:
            said = service.about()
            model = {"model": said["model"], "version": said["version"]}
            gauges |= {
                "store_sequence": said["store_sequence"],
                "items": said["items"],
                "users": said["users"],
            }
        return PlainTextResponse(metrics.exposition(gauges, model), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    @app.get("/docs/style.css", include_in_schema=False)
    def style() -> Response:
        return Response(STYLE, media_type="text/css")

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        if not (PAGE / "index.html").is_file():
            return HTMLResponse(docs_page(app.openapi()))
        text = (PAGE / "index.html").read_text(encoding="utf-8")
        return HTMLResponse(text, headers={"cache-control": "no-cache"})

    if report is not None:
        # The page has its styles and scripts within itself; in a sandbox it can ask this service for nothing.
        policy = "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src "
        policy += "'unsafe-inline'; img-src data:"

        @app.get("/report", include_in_schema=False)
        def reported() -> Response:
            return FileResponse(report, media_type="text/html", headers={"content-security-policy": policy})

    if PAGE.is_dir():
        app.mount("/static", _Static(directory=PAGE), name="static")


def _add_errors(app: FastAPI) -> None:
    def said(request: Request, status: int, field: str | None, reason: str, **headers: str) -> JSONResponse:
        made = error_document(field, reason, request.scope.get("state", {}).get("request_id"))
        more = {"retry-after": "5"} if status == 503 else {}
        return JSONResponse(made, status, headers=headers | more)

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
        reason = first["msg"].removeprefix("Value error, ")
        if first["type"] == "json_invalid":
            return said(request, 400, "body", "this is not JSON")
        return said(request, 422, ".".join(place)[:200] or "body", reason)

    @app.exception_handler(Exception)
    def fault(request: Request, error: Exception) -> JSONResponse:
        return said(request, 500, None, "a fault of the service; its log has it under this request id")

    @app.exception_handler(HTTPException)
    def refused_by_routes(request: Request, error: HTTPException) -> JSONResponse:
        field = {404: "path", 405: "method", 400: "body"}.get(error.status_code)
        return said(request, error.status_code, field, str(error.detail), **dict(error.headers or {}))

    @app.exception_handler(UnskewError)
    def refused(request: Request, error: UnskewError) -> JSONResponse:
        if isinstance(error, Refused):
            return said(request, error.status, error.field, error.reason)
        if isinstance(error, BadEvent):
            return said(request, 422, error.field, error.reason)
        write_log("the store or the run failed", 40, error, request_id=request.scope["state"]["request_id"])
        reason = "the store could not be read or written; what was acknowledged before is safe, so try again"
        return said(request, 503, "service", reason)


def _answer(model: Any) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model}}


def _say_tokens(app: FastAPI) -> None:
    """Say in the OpenAPI document that tokens are needed."""
    document = app.openapi()
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["token"] = {"type": "http", "scheme": "bearer"}
    for path, methods in document["paths"].items():
        if not path.startswith("/health/"):
            for about in methods.values():
                about["security"] = [{"token": []}]
