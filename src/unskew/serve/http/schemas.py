"""What goes over HTTP, for pydantic and for OpenAPI: shapes, limits and examples."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from unskew.core.errors import BadInput
from unskew.serve.http.request import Asked, is_huge
from unskew.serve.store.events import LONGEST, MOST_SHOWN, check_id, parse_time

MOST_HISTORY = 1000  # items in a history
MOST_NAMED = 10_000  # candidates, or items to exclude
MOST_EVENTS = 1000  # in one request
MOST_FOUND = 100  # items that a search gives
LARGEST_BODY = 4 * 2**20  # bytes

NOT_BLANK = r"^[^\u0000]*[^\s\u0000][^\u0000]*$"


def _id(value: Any) -> str:
    try:
        return check_id("id", value)
    except BadInput as error:
        raise ValueError(str(error).removeprefix("id: ")) from None


def _moment(value: Any) -> int:
    try:
        if is_huge(value):
            raise BadInput("expected seconds since 1970, or ISO text such as 2026-01-31T23:59:59Z")
        return parse_time(value)
    except BadInput as error:
        raise ValueError(str(error)) from None


def _whole(value: Any) -> Any:
    """In JSON, 3.0 is a whole number too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


ID_SCHEMA: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": LONGEST, "pattern": NOT_BLANK}
MOMENT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "format": "date-time"},
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1e11},
    ],
    "description": "ISO 8601, or seconds since 1970. Without an offset it is in UTC.",
}
Id = Annotated[str, BeforeValidator(_id), WithJsonSchema(ID_SCHEMA)]
Moment = Annotated[int, BeforeValidator(_moment), WithJsonSchema(MOMENT_SCHEMA)]
Whole = Annotated[int, BeforeValidator(_whole)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class HistoryItem(_Strict):
    """An item of a history; without a time it counts as just past."""

    item_id: Id
    timestamp: Moment | None = None


class RecommendationRequest(_Strict):
    """Whom or what to recommend for: `user_id`, `history`, or both; then the history counts, and the list is
    recorded under the user."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["user_id"], "properties": {"user_id": {"type": "string"}}},
                {"required": ["history"], "properties": {"history": {"type": "array"}}},
            ],
            "examples": [
                {"user_id": "ann", "k": 5},
                {"history": [{"item_id": "tea"}, {"item_id": "mate"}], "k": 5, "exclude": ["milk"]},
            ],
        }
    )

    user_id: Id | None = Field(None, description="Any text of up to 500 characters.")
    history: list[HistoryItem | Id] | None = Field(
        None, max_length=MOST_HISTORY, description="Items, oldest first: objects, or ids alone."
    )
    k: Whole = Field(10, ge=1, le=MOST_SHOWN, description="How many items the list has at most.")
    debias: Share | None = Field(
        None,
        description="From 0 (what will be clicked) to 1 (what would be, if all items were exposed equally), "
        "for models that have a debiasing strength; by default as the model has it.",
    )
    diverse: Share = Field(0.0, description="From 0 (the best items) to 1 (items unlike each other).")
    candidates: list[Id] | None = Field(
        None, max_length=MOST_NAMED, description="The only items that can be recommended."
    )
    exclude: list[Id] = Field([], max_length=MOST_NAMED, description="Items that are not recommended.")
    include_seen: bool | None = Field(
        None, description="Whether items of the history can come again; by default as in the model's tests."
    )
    at: Moment | None = Field(
        None, description="The moment of the request; by default just after the newest event that is known."
    )
    log: bool = Field(True, description="Whether the list is recorded in the store; it needs a user_id.")
    explore: Share | None = Field(
        None, description="The fraction of random items; by default, and at most, the service's own."
    )

    @model_validator(mode="after")
    def _check_who(self) -> "RecommendationRequest":
        if self.user_id is None and self.history is None:
            raise ValueError("expected user_id or history")
        return self

    def asked(self) -> Asked:
        """The same for the service."""
        given = self.model_dump(exclude={"history"})
        if self.history is None:
            return Asked(**given)
        pairs = [
            (one, None) if isinstance(one, str) else (one.item_id, one.timestamp) for one in self.history
        ]
        return Asked(**given, history=pairs)


class EventsRequest(_Strict):
    """Events. One that is wrong is told in `rejected`; the others are stored."""

    events: list[
        Annotated[
            dict[str, Any],
            WithJsonSchema(
                {
                    "type": "object",
                    "title": "Event",
                    "description": "`event_id` (your own key; a second copy is counted and not stored), "
                    "`user_id`, `item_id`, `type` (such as click), and maybe `timestamp` (ISO 8601 or "
                    "seconds since 1970; by default now), `recommendation_id`, `impression` (all items that "
                    "were shown together), `propensity` and `position`.",
                    "examples": [
                        {
                            "event_id": "e1",
                            "user_id": "ann",
                            "item_id": "tea",
                            "type": "click",
                            "timestamp": "2026-01-31T12:00:00Z",
                        }
                    ],
                }
            ),
        ]
    ] = Field(min_length=1, max_length=MOST_EVENTS)


# Answers


class Item(BaseModel):
    """An item of a list."""

    item_id: str
    title: str | None
    score: float = Field(description="The model's.")
    rank: int = Field(description="The place in this list, from 1.")
    propensity: float = Field(gt=0, le=1, description="The probability with which the item was in this list.")
    popularity: float = Field(ge=0, le=1, description="The item's fraction of all positives.")
    exposed: bool = Field(description="Whether it was drawn at random.")


class RecommendationAnswer(BaseModel):
    """A list."""

    recommendation_id: str | None = Field(
        description="To be named by the events that answer the list; null if the list was not recorded."
    )
    model: str
    version: str
    source: str = Field(
        description="`model`, or `fallback` if the model has nothing to say.",
        json_schema_extra={"enum": ["model", "fallback"]},
    )
    reason: str | None = Field(description="Why it is the fallback.")
    items: list[Item]
    unknown_items: list[str] = Field(
        description="Items of the request that nobody had yet; they are skipped."
    )
    took_ms: float


class RejectedEvent(BaseModel):
    """An event that was not stored."""

    index: int
    field: str
    reason: str


class EventsAnswer(BaseModel):
    """What became of events. What is accepted is on the disk."""

    accepted: int
    duplicates: int
    rejected: list[RejectedEvent]


class ItemAnswer(BaseModel):
    """What is known of an item."""

    item_id: str
    title: str | None
    features: dict[str, Any]
    positives: int
    popularity: float
    in_training: bool


class ItemsAnswer(BaseModel):
    """Items, best matches first."""

    items: list[ItemAnswer]


class UserItem(BaseModel):
    """A positive of a user."""

    item_id: str
    title: str | None
    timestamp: str | None


class UserAnswer(BaseModel):
    """What is known of a user."""

    user_id: str
    in_training: bool
    positives: int
    newest: list[UserItem] = Field(description="The newest first.")
    stored_events: int
    stored_recommendations: int


class ErasedAnswer(BaseModel):
    """What was erased."""

    events: int = Field(description="In the store.")
    recommendations: int = Field(description="In the store.")
    run_events: int = Field(description="In the memory of the run.")
    was_known: bool
    not_covered: list[str] = Field(description="Where something of the user may be left.")


class Reload(BaseModel):
    """How far a reload is."""

    state: str = Field(json_schema_extra={"enum": ["none", "loading", "done", "failed"]})
    error: str | None


class Debiasing(BaseModel):
    """Whether the model has a debiasing strength, and where it is."""

    available: bool
    default: float | None


class ModelAnswer(BaseModel):
    """The model, its log, and what it can do."""

    model: str
    version: str
    loaded_at: str
    users: int
    items: int
    positives: int
    since_training: int
    newest_event: str | None
    left_out: int = Field(description="Stored events that are left out, because their times cannot be.")
    debias: Debiasing
    include_seen: bool
    explore: float
    positive_types: list[str]
    store_sequence: int
    report: bool = Field(description="Whether there is a page at /report.")
    debias_curve: list[dict[str, Any]] | None = Field(
        description="NDCG@10 of ordinary and unbiased tests by debiasing strength, if it was measured."
    )
    reload: Reload


class Wrong(BaseModel):
    """What is wrong, and where."""

    field: str | None
    reason: str


class ErrorAnswer(BaseModel):
    """Every answer that is not a success."""

    error: Wrong
    request_id: str | None


class Health(BaseModel):
    """Whether the service lives, or can answer."""

    status: str
