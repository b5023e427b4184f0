/** Client of the unskew service. The types of requests and answers are generated from its OpenAPI document. */

import type { components, operations, paths } from "./schema.js";

type Schemas = components["schemas"];
type RecommendationFields = Extract<Schemas["RecommendationRequest"], { k: number }>;
export type RecommendationRequest = Omit<Partial<RecommendationFields>, "user_id" | "history"> &
  ({ user_id: string; history?: History } | { history: History; user_id?: string });
export type History = (string | { item_id: string; timestamp?: string | number })[];
export type RecommendationAnswer = Schemas["RecommendationAnswer"];
export type EventsAnswer = Schemas["EventsAnswer"];
export type PutItemsAnswer = Schemas["PutItemsAnswer"];
export type ItemAnswer = Schemas["ItemAnswer"];
export type ItemsAnswer = Schemas["ItemsAnswer"];
export type UserAnswer = Schemas["UserAnswer"];
export type ErasedAnswer = Schemas["ErasedAnswer"];
export type ModelAnswer = Schemas["ModelAnswer"];
export type Reload = Schemas["Reload"];

/** Something that happened: a click, a purchase, an impression, or another type that the store declares. */
export interface Event {
  event_id: string;
  user_id: string;
  item_id: string;
  type: string;
  timestamp?: string | number;
  recommendation_id?: string;
  impression?: string[];
  propensity?: number;
  position?: number;
}

/** What is known of an item from a moment on. */
export interface ItemRow {
  item_id: string;
  timestamp?: string | number;
  title?: string;
  features?: Record<string, string | string[] | number | boolean | null>;
}

export interface Options {
  /** A token of the service, if it has tokens. */
  token?: string;
  /** Milliseconds after which a request is given up; 30,000 by default. */
  timeout?: number;
  /** Another implementation of fetch. */
  fetch?: typeof fetch;
}

/** An answer of the service that is not a success. */
export class UnskewError extends Error {
  constructor(
    readonly status: number,
    readonly field: string | null,
    readonly reason: string,
    readonly requestId: string | null,
  ) {
    super(field === null ? reason : `${field}: ${reason}`);
    this.name = "UnskewError";
  }
}

export class UnskewClient {
  readonly #address: string;
  readonly #options: Options;

  constructor(address: string, options: Options = {}) {
    this.#address = address.replace(/\/+$/, "");
    this.#options = options;
  }

  /** Recommend items to a user, or after a history. */
  recommend(request: RecommendationRequest): Promise<RecommendationAnswer> {
    return this.#send("POST", "/v1/recommendations", {}, request);
  }

  /** Store events, durably. They count from the next request on. */
  append(events: Event[]): Promise<EventsAnswer> {
    return this.#send("POST", "/v1/events", {}, { events });
  }

  /** Store what is known of items, durably. */
  putItems(items: ItemRow[]): Promise<PutItemsAnswer> {
    return this.#send("PUT", "/v1/items", {}, { items });
  }

  /** Items whose title or id contains the query; without a query, the most popular ones. */
  items(query: Query<"items_v1_items_get"> = {}): Promise<ItemsAnswer> {
    return this.#send("GET", "/v1/items", query);
  }

  item(itemId: string): Promise<ItemAnswer> {
    return this.#send("GET", `/v1/items/${encodeURIComponent(itemId)}`);
  }

  user(userId: string): Promise<UserAnswer> {
    return this.#send("GET", `/v1/users/${encodeURIComponent(userId)}`);
  }

  /** Erase a user. The answer says what that does not cover. */
  erase(userId: string): Promise<ErasedAnswer> {
    return this.#send("DELETE", `/v1/users/${encodeURIComponent(userId)}`);
  }

  /** The model, its log, and what it can do. */
  model(): Promise<ModelAnswer> {
    return this.#send("GET", "/v1/model");
  }

  /** Load the run again, and wait for it for at most so many seconds. */
  reload(wait = 0): Promise<Reload> {
    return this.#send("POST", "/v1/model/reload", { wait });
  }

  /** What happened and what was shown in the newest 26 weeks. */
  monitor(): Promise<Record<string, unknown>> {
    return this.#send("GET", "/v1/monitor");
  }

  async #send<Answer>(
    method: string,
    path: string,
    query: Record<string, unknown> = {},
    body?: unknown,
  ): Promise<Answer> {
    const url = new URL(this.#address + path);
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined && value !== null) url.searchParams.set(name, String(value));
    }
    const headers: Record<string, string> = {};
    if (body !== undefined) headers["content-type"] = "application/json";
    if (this.#options.token !== undefined) headers["authorization"] = `Bearer ${this.#options.token}`;
    const send = this.#options.fetch ?? fetch;
    const answer = await send(url, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(this.#options.timeout ?? 30_000),
    });
    if (!answer.ok) throw await failure(answer);
    return (await answer.json()) as Answer;
  }
}

type Query<Name extends keyof operations> = NonNullable<operations[Name]["parameters"]["query"]>;

/** The paths that this client uses; a path that the service loses is an error of the compiler. */
export type UsedPaths = Pick<
  paths,
  | "/v1/recommendations"
  | "/v1/events"
  | "/v1/items"
  | "/v1/items/{item_id}"
  | "/v1/users/{user_id}"
  | "/v1/model"
  | "/v1/model/reload"
  | "/v1/monitor"
>;

async function failure(answer: Response): Promise<UnskewError> {
  const text = await answer.text();
  try {
    const document = JSON.parse(text) as Schemas["ErrorAnswer"];
    const { field, reason } = document.error;
    return new UnskewError(answer.status, field, reason ?? answer.statusText, document.request_id);
  } catch {
    return new UnskewError(answer.status, null, text.slice(0, 200) || answer.statusText, null);
  }
}
