"""The service over HTTP, as an ASGI application.

    app = create_app(service)      for uvicorn, or any other ASGI server

`unskew serve` does this and more: sockets, tokens, a graceful stop.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles

from unskew.core.config import did_you_mean
from unskew.core.errors import UnskewError
from unskew.serve.http import schemas
from unskew.serve.http.docs_page import STYLE, docs_page
from unskew.serve.http.logs import write_log
from unskew.serve.http.metrics import Metrics
from unskew.serve.http.middleware import LOOPBACK, Gate, Limits, error_document
from unskew.serve.http.request import Refused
from unskew.serve.http.service import Service
from unskew.serve.http.tokens import Tokens
from unskew.serve.store.events import BadEvent

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
PAGE = Path(__file__).parents[1] / "page"
DESCRIPTION = (
    "Recommendations from a trained run and from what happened a moment ago. What is recommended is recorded "
    "with the probability of being shown."
)
STATUS_DESCRIPTIONS = {
    400: "The request is no HTTP or no JSON.",
    401: "A token is missing.",
    403: "The token may only read.",
    404: "There is no such user, item or path.",
    405: "The path has other methods.",
    408: "The request came too slowly.",
    409: "The request does not fit the model, its log, or what is under way.",
    413: "The body is too large.",
    421: "The service is not called by that name.",
    422: "A field is wrong.",
    503: "Not ready, or too busy; try again.",
}
# The report has its styles and scripts within itself; in a sandbox it can ask this service for nothing.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:"
)


class _AnyText(PathConvertor):
    """An id in a path: any text, with slashes and line breaks."""

    regex = "(?s:.*)"


register_url_convertor("id", _AnyText())


class _Static(StaticFiles):
    """Files of the page, which a browser asks for again only if they have changed."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers["cache-control"] = "public, max-age=0, must-revalidate"
        return response

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
    mcp: bool = False,
) -> Gate:
    """Create the application of a service.

    Parameters
    ----------
    service
        The service, loaded or still to be loaded.
    tokens
        The tokens for reading and writing; without them, every client that reaches the service may do both.
    hosts
        The names by which it may be called, so that no page on the web can point its own name to this
        machine; None is any name.
    limits
        Of the size of a body and the time of a request.
    report
        A page that `unskew report --html` made, for /report. Every client that reaches the service may read
        it.
    mcp
        Whether language models may use it by the Model Context Protocol, at /mcp.

    Returns
    -------
    Gate
        The ASGI application.
    """
    metrics = Metrics()
    mcp_endpoint, lifespan = _mcp_routes(service) if mcp else ([], None)
    app = FastAPI(
        title="unskew",
        lifespan=lifespan,
        version=version("unskew"),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={
            status: {"model": schemas.ErrorAnswer, "description": description}
            for status, description in STATUS_DESCRIPTIONS.items()
        },
    )
    for routes in (
        _recommendation_routes(service, metrics),
        _lookup_routes(service),
        _model_routes(service, report is not None),
        _health_routes(service, metrics),
        _page_routes(app, report),
    ):
        app.include_router(routes)
    app.router.routes.extend(mcp_endpoint)
    if PAGE.is_dir():
        app.mount("/static", _Static(directory=PAGE), name="static")
    _handle_errors(app)
    if tokens is not None:
        _document_tokens(app)
    return Gate(app, metrics, tokens, hosts, limits)


def _mcp_routes(service: Service) -> tuple[list[BaseRoute], Lifespan]:
    from unskew.serve.http.mcp import mcp_routes  # needs an extra

    return mcp_routes(service)


async def _check_query(request: Request) -> None:
    """Refuse a parameter that the endpoint does not have, or that is given twice: it would be ignored."""
    names = [name for name, _ in request.query_params.multi_items()]
    expected = [field.alias for field in request.scope["route"].dependant.query_params]
    for name in names:
        if name not in expected:
            near = did_you_mean(name, expected) or f"; there are {', '.join(expected) or 'none here'}"
            raise Refused(name[:60], f"no such parameter{near}", 422)
        if names.count(name) > 1:
            raise Refused(name, "it is given more than once", 422)


def _api_routes(prefix: str = "/v1") -> APIRouter:
    return APIRouter(prefix=prefix, dependencies=[Depends(_check_query)])


def _recommendation_routes(service: Service, metrics: Metrics) -> APIRouter:
    routes = _api_routes()

    def recommend(request: schemas.RecommendationRequest, may_record: bool) -> JSONResponse:
        answer = service.recommend(request, may_record)
        metrics.count_list(answer["source"])
        return JSONResponse(answer)

    @routes.post("/recommendations", responses=_answer(schemas.RecommendationAnswer))
    def recommend_by_post(request: schemas.RecommendationRequest, http: Request) -> JSONResponse:
        """Recommend items to a user, or after a history."""
        return recommend(request, http.scope["state"]["may_record"])

    @routes.get("/recommendations", responses=_answer(schemas.RecommendationAnswer))
    def recommend_by_get(
        user_id: Annotated[schemas.Id, Query()],
        k: Annotated[int, Query(ge=1, le=schemas.MOST_SHOWN)] = 10,
        debias: Annotated[float | None, Query(ge=0, le=1)] = None,
        rule_set: Annotated[str | None, Query(max_length=schemas.LONGEST)] = None,
    ) -> JSONResponse:
        """The same to look at, such as with curl. It records nothing."""
        request = schemas.RecommendationRequest(user_id=user_id, k=k, debias=debias, rule_set=rule_set)
        return recommend(request, False)

    @routes.post("/events", responses=_answer(schemas.EventsAnswer))
    def append(request: schemas.EventsRequest) -> JSONResponse:
        """Store events, durably. They count from the next request on."""
        answer = service.append(request.events)
        metrics.count_events(answer["accepted"], answer["duplicates"], len(answer["rejected"]))
        return JSONResponse(answer)

    return routes


def _lookup_routes(service: Service) -> APIRouter:
    routes = _api_routes()

    @routes.put("/items", responses=_answer(schemas.PutItemsAnswer))
    def put_items(request: schemas.ItemsRequest) -> JSONResponse:
        """Store what is known of items, durably: titles, tags, numbers, availability, text. A new item can be
        recommended from the next request on, and rules read the new values."""
        return JSONResponse(service.put_items(request.items))

    @routes.get("/items", responses=_answer(schemas.ItemsAnswer))
    def items(
        query: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=schemas.MOST_FOUND)] = 20,
    ) -> JSONResponse:
        """Items whose title or id contains the query: the best matches first, then the most popular ones.
        Without a query, the most popular ones."""
        return JSONResponse(service.items(query, limit))

    @routes.get("/items/{item_id:id}", responses=_answer(schemas.ItemAnswer))
    def item(item_id: schemas.Id) -> JSONResponse:
        """What is known of an item."""
        return JSONResponse(service.item(item_id))

    @routes.get("/users/{user_id:id}", responses=_answer(schemas.UserAnswer))
    def user(user_id: schemas.Id) -> JSONResponse:
        """What is known of a user: the newest positives, and how much the store holds."""
        return JSONResponse(service.user(user_id))

    @routes.delete("/users/{user_id:id}", responses=_answer(schemas.ErasedAnswer))
    def erase(user_id: schemas.Id) -> JSONResponse:
        """Erase a user. The answer says what that does not cover."""
        return JSONResponse(service.erase(user_id))

    return routes


def _model_routes(service: Service, has_report: bool) -> APIRouter:
    routes = _api_routes()

    @routes.get("/model", responses=_answer(schemas.ModelAnswer))
    def about() -> JSONResponse:
        """The model, its log, and what it can do."""
        return JSONResponse(service.about(has_report))

    loading = {"model": schemas.Reload, "description": "It is under way."}

    @routes.post("/model/reload", responses=_answer(schemas.Reload) | {202: loading})
    def reload(wait: Annotated[float, Query(ge=0, le=25)] = 0.0) -> JSONResponse:
        """Load the run again, from where its link points to now, while requests go on with the one before.
        With `wait`, answer when it is done, or after so many seconds."""
        answer = service.reload(wait)
        if answer["state"] == "failed":
            raise Refused("run", f"{answer['error']}; the run from before goes on")
        return JSONResponse(answer, 202 if answer["state"] == "loading" else 200)

    @routes.get("/monitor", responses=_answer(dict[str, Any]))
    def monitor() -> JSONResponse:
        """What happened and what was shown in the newest 26 weeks (`unskew monitor`, which has settings). It
        reads the whole store, so it is made at most once a minute."""
        return JSONResponse(service.monitor())

    return routes


def _health_routes(service: Service, metrics: Metrics) -> APIRouter:
    routes = _api_routes("")

    @routes.get("/health/live", responses=_answer(schemas.HealthAnswer))
    async def live() -> JSONResponse:
        """Whether the process lives. It needs no thread, so it is answered while all of them work."""
        return JSONResponse({"status": "live"})

    @routes.get("/health/ready", responses=_answer(schemas.HealthAnswer))
    async def ready() -> JSONResponse:
        """Whether it can answer."""
        if not service.ready:
            raise Refused("service", "not ready", 503)
        return JSONResponse({"status": "ready"})

    @routes.get("/metrics", response_class=PlainTextResponse)
    def exposition() -> PlainTextResponse:
        """Counters in the text format of Prometheus."""
        gauges: dict[str, float] = {"ready": int(service.ready)}
        model: dict[str, str] = {}
        if service.ready:
            about = service.about()
            model = {"model": about["model"], "version": about["version"]}
            gauges |= {
                "store_sequence": about["store_sequence"],
                "items": about["items"],
                "users": about["users"],
            }
        return PlainTextResponse(metrics.exposition(gauges, model), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return routes


def _page_routes(app: FastAPI, report: Path | None) -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.get("/docs")
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    @routes.get("/docs/style.css")
    def style() -> Response:
        return Response(STYLE, media_type="text/css")

    @routes.get("/")
    def page() -> Response:
        if not (PAGE / "index.html").is_file():
            return HTMLResponse(docs_page(app.openapi()))
        text = (PAGE / "index.html").read_text(encoding="utf-8")
        return HTMLResponse(text, headers={"cache-control": "no-cache"})

    @routes.get("/favicon.ico")  # which browsers ask for on pages that name no icon
    def icon() -> FileResponse:
        return FileResponse(PAGE / "icon.svg", media_type="image/svg+xml")

    if report is not None:

        @routes.get("/report")
        def serve_report() -> Response:
            headers = {"content-security-policy": REPORT_POLICY}
            return FileResponse(report, media_type="text/html", headers=headers)

    return routes


def _handle_errors(app: FastAPI) -> None:
    def refuse(request: Request, status: int, field: str | None, reason: str, **headers: str) -> JSONResponse:
        document = error_document(field, reason, request.scope.get("state", {}).get("request_id"))
        retry = {"retry-after": "5"} if status == 503 else {}
        return JSONResponse(document, status, headers=headers | retry)

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return refuse(request, 400, "body", "this is not JSON")
        path = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
        return refuse(
            request, 422, ".".join(path)[:200] or "body", first["msg"].removeprefix("Value error, ")
        )

    @app.exception_handler(Exception)
    def fault(request: Request, error: Exception) -> JSONResponse:
        return refuse(request, 500, None, "a fault of the service; its log has it under this request id")

    @app.exception_handler(HTTPException)
    def no_route(request: Request, error: HTTPException) -> JSONResponse:
        field = {404: "path", 405: "method", 400: "body"}.get(error.status_code)
        return refuse(request, error.status_code, field, str(error.detail), **dict(error.headers or {}))

    @app.exception_handler(UnskewError)
    def refused(request: Request, error: UnskewError) -> JSONResponse:
        if isinstance(error, Refused):
            return refuse(request, error.status, error.field, error.reason)
        if isinstance(error, BadEvent):
            return refuse(request, 422, error.field, error.reason)
        write_log("the store or the run failed", 40, error, request_id=request.scope["state"]["request_id"])
        reason = "the store could not be read or written; what was acknowledged before is safe, so try again"
        return refuse(request, 503, "service", reason)


def _answer(model: Any) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model}}


def _document_tokens(app: FastAPI) -> None:
    """Put into the OpenAPI document that tokens are needed."""
    document = app.openapi()
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["token"] = {"type": "http", "scheme": "bearer"}
    for path, methods in document["paths"].items():
        if not path.startswith("/health/"):
            for operation in methods.values():
                operation["security"] = [{"token": []}]
