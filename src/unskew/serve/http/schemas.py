"""What goes over HTTP: requests, which pydantic checks, and answers. OpenAPI shows both."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from unskew.core.errors import BadInput
from unskew.recommendation.rules import LONGEST_RULE, MOST_RULES
from unskew.serve.store.events import LONGEST, MOST_SHOWN, check_id, parse_time

MOST_HISTORY = 1000  # items in a history
MOST_NAMED = 10_000  # candidates, or items to exclude
MOST_EVENTS = 1000  # in one request
MOST_FOUND = 100  # items that a search gives
LARGEST_BODY = 4 * 2**20  # bytes


def _check_id(value: Any) -> str:
    try:
        return check_id("id", value)
    except BadInput as error:
        raise ValueError(str(error).removeprefix("id: ")) from None


def _parse_time(value: Any) -> int:
    try:
        return parse_time(value)
    except BadInput as error:
        raise ValueError(str(error)) from None


def _as_whole(value: Any) -> Any:
    """In JSON, 3.0 is a whole number too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


ID_SCHEMA: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": LONGEST}
# Not blank: str.isspace knows five more signs than the \s of a pattern in a schema.
ID_SCHEMA["pattern"] = r"^[^\u0000]*[^\s\u0000\u001c-\u001f\u0085][^\u0000]*$"
TIME_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "format": "date-time"},
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1e11},
    ],
    "description": "ISO 8601, or seconds since 1970. Without an offset it is in UTC.",
}
EVENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Event",
    "description": "`event_id` (your own key; a second copy is counted and not stored), `user_id`, "
    "`item_id`, `type` (such as click), and maybe `timestamp` (ISO 8601 or seconds since 1970; by default "
    "now), `recommendation_id`, `impression` (all items that were shown together), `propensity` and "
    "`position`.",
    "examples": [
        {"event_id": "e1", "user_id": "ann", "item_id": "tea", "type": "click"}
        | {"timestamp": "2026-01-31T12:00:00Z"}
    ],
}
ITEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "ItemRow",
    "description": "`item_id`, and maybe `timestamp` (from when on it is known; by default now), `title` "
    'and `features`: values by their names, which are text (`lamps|sale` and `["lamps", "sale"]` are two '
    "tags), numbers, or true and false. What a row does not have stays as it was.",
    "examples": [
        {
            "item_id": "B_359",
            "title": "Blue lamp",
            "features": {"category": "lamps|sale", "price": 19.9, "in_stock": True},
        }
    ],
}
Id = Annotated[str, BeforeValidator(_check_id), WithJsonSchema(ID_SCHEMA)]
Time = Annotated[int, BeforeValidator(_parse_time), WithJsonSchema(TIME_SCHEMA)]
Whole = Annotated[int, BeforeValidator(_as_whole)]
Fraction = Annotated[float, Field(ge=0, le=1)]

# Requests


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class HistoryItem(_Strict):
    """An item of a history; without a time it counts as just past."""

    item_id: Id
    timestamp: Time | None = None


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

    user_id: Id | None = Field(default=None, description="Any text of up to 500 characters.")
    history: list[HistoryItem | Id] | None = Field(
        default=None, max_length=MOST_HISTORY, description="Items, oldest first: objects, or ids alone."
    )
    k: Whole = Field(default=10, ge=1, le=MOST_SHOWN, description="The largest number of items of the list.")
    debias: Fraction | None = Field(
        default=None,
        description="From 0 (what will be clicked) to 1 (what would be, if all items were exposed equally), "
        "for models that have a debiasing strength; by default as the model has it.",
    )
    diverse: Fraction = Field(
        default=0.0, description="From 0 (the best items) to 1 (items unlike each other)."
    )
    candidates: list[Id] | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_NAMED,
        description="The only items that can be recommended; at least one of them must be known.",
    )
    exclude: list[Id] = Field(
        default=[], max_length=MOST_NAMED, description="Items that are not recommended."
    )
    rules: list[Annotated[str, Field(max_length=LONGEST_RULE)]] = Field(
        default=[],
        max_length=MOST_RULES,
        description="Business rules about items and the list, such as `category in [shoes, hats]`, "
        "`exclude price >= 50`, `at most 2 per brand`, `at least 30% new = true` and `pin B_359 at 1`.",
    )
    rule_set: str | None = Field(
        default=None,
        max_length=LONGEST,
        description="A named set of rules of the service, to which `rules` are added; by default the set "
        "`default`, if there is one.",
    )
    cold: Literal["model", "content"] = Field(
        default="model",
        description="How items are scored that nobody has had yet: by the model, or by their content, what "
        "an item feed says of them.",
    )
    include_seen: bool | None = Field(
        default=None,
        description="Whether items of the history can be recommended again; by default as in the model's "
        "evaluation.",
    )
    at: Time | None = Field(
        default=None,
        description="The moment of the request; by default just after the newest event that is known.",
    )
    log: bool | None = Field(
        default=None,
        description="Whether the list is recorded in the store. By default it is, if the token may record "
        "and the request has a user_id, and neither `at` nor `candidates`: what is recorded was recommended "
        "now, from the whole catalogue.",
    )
    explain: bool = Field(
        default=False, description="Whether each item comes with the parts of its score; Pulse has them."
    )
    explore: Fraction | None = Field(
        default=None, description="The fraction of random items; by default, and at most, the service's own."
    )

    @model_validator(mode="after")
    def _check(self) -> "RecommendationRequest":
        if self.user_id is None and self.history is None:
            raise ValueError("expected user_id or history")
        return self

    def history_pairs(self) -> list[tuple[str, int | None]]:
        """The items of the history with their times, in microseconds since 1970."""
        return [
            (item, None) if isinstance(item, str) else (item.item_id, item.timestamp)
            for item in self.history or ()
        ]


class EventsRequest(_Strict):
    """Events. One that is wrong is named in `rejected`; the others are stored."""

    events: list[Annotated[dict[str, Any], WithJsonSchema(EVENT_SCHEMA)]] = Field(
        min_length=1, max_length=MOST_EVENTS
    )


class ItemsRequest(_Strict):
    """What is known of items. A row that is wrong is named in `rejected`; the others are stored."""

    items: list[Annotated[dict[str, Any], WithJsonSchema(ITEM_SCHEMA)]] = Field(
        min_length=1, max_length=MOST_EVENTS
    )


# Answers


class ScorePart(TypedDict):
    """A part of the score of an item."""

    kind: Annotated[
        str,
        Field(description="base (average item), popular, new, neighbours, repeat, context, tag or debias"),
    ]
    text: Annotated[str, Field(description="The same in words.")]
    part: Annotated[float, Field(description="How much of the score; all parts add up to it.")]
    item_id: Annotated[str | None, Field(description="The item of the user that neighbours share.")]
    tag: str | None


class Item(TypedDict):
    """An item of a list."""

    item_id: str
    title: str | None
    score: Annotated[float, Field(description="The model's.")]
    rank: Annotated[int, Field(description="The position in this list, from 1.")]
    propensity: Annotated[
        float, Field(gt=0, le=1, description="The probability with which the item was in this list.")
    ]
    popularity: Annotated[float, Field(ge=0, le=1, description="The item's fraction of all positives.")]
    exposed: Annotated[bool, Field(description="Whether it was drawn at random.")]
    because: Annotated[
        list[ScorePart] | None,
        Field(description="The parts of the score, the largest first after the base, if asked for."),
    ]


class RecommendationAnswer(TypedDict):
    """A list."""

    recommendation_id: Annotated[
        str | None,
        Field(description="To be named by the events that answer the list; null if it was not recorded."),
    ]
    model: str
    version: str
    variant: Annotated[str | None, Field(description="In an A/B test, the variant that made the list.")]
    source: Annotated[
        Literal["model", "fallback"],
        Field(description="The fallback recommends where the model has no score."),
    ]
    reason: Annotated[str | None, Field(description="Why it is the fallback.")]
    items: list[Item]
    unknown_items: Annotated[
        list[str], Field(description="Items of the request that have no event; they are skipped.")
    ]
    took_ms: float


class RejectedEvent(TypedDict):
    """An event that was not stored."""

    index: int
    field: str
    reason: str


class EventsAnswer(TypedDict):
    """What became of events. What is accepted is on the disk."""

    accepted: int
    duplicates: int
    rejected: list[RejectedEvent]


class PutItemsAnswer(TypedDict):
    """What became of rows about items. What is accepted is on the disk, and counts from now on."""

    accepted: int
    unchanged: Annotated[int, Field(description="Rows that say nothing new; they are not stored.")]
    rejected: list[RejectedEvent]


class ItemAnswer(TypedDict):
    """What is known of an item."""

    item_id: str
    title: str | None
    features: dict[str, Any]
    positives: int
    popularity: float
    in_training: bool


class ItemsAnswer(TypedDict):
    """Items, best matches first."""

    items: list[ItemAnswer]


class UserItem(TypedDict):
    """A positive of a user."""

    item_id: str
    title: str | None
    timestamp: str | None


class UserAnswer(TypedDict):
    """What is known of a user."""

    user_id: str
    in_training: bool
    positives: int
    newest: Annotated[list[UserItem], Field(description="The newest first.")]
    stored_events: int
    stored_recommendations: int


class ErasedAnswer(TypedDict):
    """What was erased."""

    events: Annotated[int, Field(description="In the store.")]
    recommendations: Annotated[int, Field(description="In the store.")]
    run_events: Annotated[int, Field(description="In the memory of the run.")]
    was_known: bool
    covered: Annotated[list[str], Field(description="Where nothing of the user is left, or counts.")]
    not_covered: Annotated[list[str], Field(description="Where something of the user may be left.")]


class Reload(TypedDict):
    """The state of a reload."""

    state: Literal["none", "loading", "done", "failed"]
    error: str | None


class Debiasing(TypedDict):
    """Whether the model has a debiasing strength, and its default."""

    available: bool
    default: float | None


class Noun(TypedDict):
    """What the items are called on the page: one of them, and many."""

    one: str
    many: str


class ModelAnswer(TypedDict):
    """The model, its log, and what it can do."""

    model: str
    version: str
    loaded_at: str
    users: int
    items: int
    positives: int
    since_training: int
    newest_event: str | None
    left_out: Annotated[
        int, Field(description="Stored events that are left out, because their times lie in the future.")
    ]
    debias: Debiasing
    include_seen: bool
    explains: Annotated[bool, Field(description="Whether a list can come with reasons.")]
    explore: float
    explore_cold: Annotated[float, Field(description="The fraction of lists with a drawn cold item.")]
    rule_sets: Annotated[list[str], Field(description="The names that a request may name.")]
    variants: Annotated[
        dict[str, float], Field(description="In an A/B test, the fraction of the users of each variant.")
    ]
    positive_types: list[str]
    noun: Noun
    store_sequence: int
    report: Annotated[bool, Field(description="Whether there is a page at /report.")]
    debias_curve: Annotated[
        list[dict[str, Any]] | None,
        Field(description="NDCG@10 of ordinary and unbiased tests by debiasing strength, if measured."),
    ]
    reload: Reload


class ShownWindow(TypedDict):
    """What was shown in a window of time; a value is null where nothing is known of it."""

    start: str
    positives: int
    gini_shown: Annotated[float | None, Field(description="0: equally often; near 1: a few items have all.")]
    gini_clicked: float | None
    coverage_shown: Annotated[float | None, Field(description="The fraction of the catalogue shown.")]
    lift: Annotated[
        float | None,
        Field(description="Mean popularity of what was shown over that of what was clicked."),
    ]


class BiasAnswer(TypedDict):
    """How skewed the log and the shown lists are."""

    summary: Annotated[list[str], Field(description="The same in sentences.")]
    positives: int
    items: int
    gini: Annotated[float | None, Field(description="The Gini index of the positives over the items.")]
    top_tenth: Annotated[
        float | None,
        Field(description="The fraction of the positives on the most popular tenth of the items."),
    ]
    windows: Annotated[list[ShownWindow], Field(description="The newest first.")]
    debias: Debiasing
    debias_curve: list[dict[str, Any]] | None


class FieldError(TypedDict):
    """The field that is wrong, and the reason."""

    field: str | None
    reason: str | None


class ErrorAnswer(TypedDict):
    """Every answer that is not a success."""

    error: FieldError
    request_id: str | None


class HealthAnswer(TypedDict):
    """Whether the service lives, or can answer."""

    status: str
