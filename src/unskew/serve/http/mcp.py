"""Tools for language models, by the Model Context Protocol: `unskew serve ... --mcp` has them at `/mcp`.

    recommend      items for a user, or after a history
    similar        items that users of one item take
    explain        why items are recommended to a user
    inspect_bias   how skewed the log and the shown lists are

Every tool only reads: nothing is recorded, whichever token the client has. Requests have no session, so any
worker answers them. Needs the extra `mcp`.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import Field
from starlette.routing import BaseRoute, Route

from unskew.core.errors import BadInput
from unskew.serve.http.request import Refused
from unskew.serve.http.schemas import (
    MOST_HISTORY,
    BiasAnswer,
    Fraction,
    Id,
    RecommendationAnswer,
    RecommendationRequest,
)
from unskew.serve.http.service import Service
from unskew.serve.store.events import MOST_SHOWN, BadEvent

PATH = "/mcp"
ABOUT = (
    "Recommendations of items to users from a trained model and from what happened a moment ago. A user or "
    "an item is named by its id. `debias` from 0 to 1 says how much of the popularity is removed. Nothing is "
    "recorded."
)
Number = Annotated[int, Field(ge=1, le=MOST_SHOWN, description="The largest number of items.")]
Debias = Annotated[
    Fraction | None,
    Field(description="0 ranks by what will be clicked, 1 by what would be if all items were shown equally."),
]
History = Annotated[list[Id] | None, Field(max_length=MOST_HISTORY, description="Items, oldest first.")]
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class Tools:
    """The tools, over a service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def recommend(
        self, user_id: Id | None = None, history: History = None, k: Number = 10, debias: Debias = None
    ) -> RecommendationAnswer:
        """Recommend items to a user, or after a history of items."""
        if user_id is None and history is None:
            raise Refused("user_id", "expected a user_id or a history")
        return self._list(user_id=user_id, history=history, k=k, debias=debias)

    def similar(self, item_id: Id, k: Number = 10) -> RecommendationAnswer:
        """Items for a user of whom nothing is known but that this item was chosen just now."""
        self._service.item(item_id)  # which refuses an unknown one
        return self._list(history=[item_id], exclude=[item_id], k=k)

    def explain(
        self, user_id: Id, item_ids: History = None, k: Number = 5, debias: Debias = None
    ) -> RecommendationAnswer:
        """Why items are recommended to a user: each with the parts of its score. Without `item_ids`, the
        items of the user's list."""
        if item_ids is None:
            return self._list(user_id=user_id, k=k, debias=debias, explain=True)
        more = {"candidates": item_ids, "include_seen": True, "k": min(len(item_ids) or 1, MOST_SHOWN)}
        return self._list(user_id=user_id, debias=debias, explain=True, **more)

    def inspect_bias(self) -> BiasAnswer:
        """How skewed popularity is in the log, how skewed and how popular what was shown lately is, and what
        the debiasing strength of the model does."""
        return self._service.bias()

    def _list(self, **options: Any) -> RecommendationAnswer:
        return self._service.recommend(RecommendationRequest(**options), may_record=False)


def require_mcp() -> None:
    """Refuse to go on without the package of the protocol."""
    try:
        import mcp
    except ImportError:
        raise BadInput(
            "--mcp needs the extra: pip install '.[mcp]' in a clone of unskew", field="mcp"
        ) from None
    del mcp


def mcp_routes(service: Service) -> tuple[list[BaseRoute], Lifespan]:
    """The endpoint of the tools, and what must run around the application that has it.

    Parameters
    ----------
    service
        The service, loaded or still to be loaded.

    Returns
    -------
    tuple
        The routes, and the lifespan of the application.
    """
    require_mcp()
    from mcp.server.mcpserver import MCPServer
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp.types import ToolAnnotations

    server = MCPServer("unskew", instructions=ABOUT, version=version("unskew"), log_level="WARNING")
    tools = Tools(service)
    for tool in (tools.recommend, tools.similar, tools.explain, tools.inspect_bias):
        server.add_tool(_answered(tool), annotations=ToolAnnotations(read_only_hint=True))
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        # The gate of the service has checked by which name it is called, and the token.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    routes = [route for route in app.routes if isinstance(route, Route)]
    posts: list[BaseRoute] = [Route(PATH, route.endpoint, methods=["POST"], name="mcp") for route in routes]
    return posts, app.router.lifespan_context


def _answered(tool: Callable[..., Any]) -> Callable[..., Any]:
    """A tool that says what is wrong with a request, as the HTTP interface does."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(tool)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return tool(*arguments, **options)
        except (Refused, BadEvent) as error:
            raise ToolError(f"{error.field}: {error.reason}") from None

    return call
