// Requests to the service, and messages for what can go wrong.

import { button, made } from "./dom.js";

const PATIENCE = 20_000; // milliseconds
const TOKEN = "unskew-token";

export class Trouble extends Error {
  // kind: down, busy, token, bad or broken. fields: which field is wrong, and why.
  constructor(kind, title, words, more = {}) {
    super(title);
    this.kind = kind;
    this.title = title;
    this.words = words;
    this.status = more.status || 0;
    this.fields = more.fields || [];
    this.wait = more.wait || 0; // seconds until the next attempt
    this.request = more.request || ""; // the id of the request in the log of the service
  }
}

export const text = encodeURIComponent;

// Addresses are relative, so the page also works below a prefix.
export async function ask(path, { body, signal } = {}) {
  const clock = new AbortController();
  const timer = window.setTimeout(() => clock.abort(new DOMException("", "TimeoutError")), PATIENCE);
  signal?.addEventListener("abort", () => clock.abort(signal.reason));
  const headers = { accept: "application/json" };
  const token = stored();
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  try {
    const answer = await fetch(path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: clock.signal,
    });
    const found = await answer.json().catch((error) => {
      if (error.name === "AbortError" || error.name === "TimeoutError") throw error;
      return null;
    });
    if (answer.ok && found !== null) return found;
    throw refused(answer, found);
  } catch (error) {
    if (error instanceof Trouble) throw error;
    if (signal?.aborted) throw new DOMException("", "AbortError");
    if (error.name === "TimeoutError") {
      throw new Trouble("busy", "No answer in time", "The service took longer than 20 seconds.");
    }
    throw new Trouble("down", "The service does not answer",
      "It may have been stopped, or it is still starting. Your history on this page is kept.");
  } finally {
    window.clearTimeout(timer);
  }
}

function refused(answer, found) {
  const { status } = answer;
  const wait = Math.min(Number(answer.headers.get("retry-after")) || 0, 60);
  const fields = wrong(found);
  const said = fields.map(({ reason }) => sentence(reason)).join(" ");
  const more = { status, wait, request: found?.request_id };
  if (status === 401 || (status === 403 && fields[0]?.field === "Authorization")) {
    return new Trouble("token", status === 401 ? "This service asks for a token" : "This token may only read",
      "The operator of the service has a file of tokens. A token stays in this tab only.", more);
  }
  if (status === 429) {
    const words = said || "The service asks for a short pause.";
    return new Trouble("busy", "Too many requests at once", words, more);
  }
  if (status === 503) {
    return new Trouble("busy", "The service is busy", said || "It is loading a model, or it has no room for "
      + "another request.", more);
  }
  if (status >= 500 || answer.ok) {
    return new Trouble("broken", "The service failed", said || `It answered with status ${status}. Its log `
      + "says more.", more);
  }
  const words = fields.length ? "" : `It answered with status ${status}.`;
  return new Trouble("bad", "The service refused this request", words, { ...more, fields });
}

const sentence = (words) => {
  const end = /[.!?]$/.test(words) ? "" : ".";
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}${end}`;
};

// Fields and reasons of a refusal.
function wrong(found) {
  if (found === null || typeof found !== "object") return [];
  const listed = [found.detail, found.errors, found.error, found.rejected, found].find((one) => one) ?? [];
  return [listed].flat().map((one) => {
    if (typeof one === "string") return { field: "", reason: one };
    const place = Array.isArray(one.loc) ? one.loc.filter((at) => at !== "body").join(".") : "";
    return { field: String(one.field ?? place), reason: String(one.reason ?? one.msg ?? "") };
  }).filter(({ reason }) => reason);
}

function stored() {
  try { return window.sessionStorage.getItem(TOKEN) || ""; } catch { return ""; }
}

// A card with an error, and a way to try again.
export function troubled(error, again) {
  if (!(error instanceof Trouble)) {
    window.console.error(error);
    error = new Trouble("broken", "Something on this page failed", "Load it again; what is logged is safe.");
  }
  const box = made("div", `trouble ${error.kind}`, made("h3", "", error.title), made("p", "", error.words));
  box.setAttribute("role", "alert");
  if (error.fields.length) {
    const list = made("dl", "fields");
    for (const { field, reason } of error.fields) {
      list.append(made("dt", "", made("code", "", field || "request")), made("dd", "", reason));
    }
    box.append(list);
  }
  if (error.kind === "broken" && error.request) {
    box.append(made("p", "soft", "Request id: ", made("code", "", error.request)));
  }
  if (error.kind === "token") box.append(tokenForm(again));
  else if (again) box.append(retry(again, error.wait));
  return box;
}

function tokenForm(again) {
  const input = made("input");
  Object.assign(input, { type: "password", autocomplete: "off", required: true });
  input.setAttribute("aria-label", "Token");
  const send = made("button", "plain", "Use it");
  const form = made("form", "joined", input, send);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    try { window.sessionStorage.setItem(TOKEN, input.value); } catch { /* then it is asked for again */ }
    again?.();
  });
  return form;
}

// A button that presses itself after the pause that the service named.
function retry(again, wait) {
  const words = (left) => (left > 0 ? `Try again (by itself in ${left} s)` : "Try again");
  let left = Math.ceil(wait);
  const go = () => {
    window.clearInterval(timer);
    again();
  };
  const node = button("plain", words(left), go);
  const timer = left > 0 ? window.setInterval(() => {
    left -= 1;
    if (!node.isConnected) window.clearInterval(timer);
    else if (left <= 0) go();
    else node.textContent = words(left);
  }, 1000) : 0;
  return node;
}
