// The page: a history, two lists with a debiasing strength, and two more views.

import { Trouble, ask, text, troubled } from "./api.js";
import { debiasBox } from "./debias.js";
import { button, by, full, made, plural, say, titled, toast } from "./dom.js";
import { LISTED, remembered, search } from "./items.js";
import * as lists from "./lists.js";
import { monitor, sleeping } from "./monitor.js";
import { searchBox } from "./search.js";
import { call, items as counted, noun } from "./words.js";

const SHOWN = 14; // chips of a long history
const SIDES = ["log", "fair"];

const state = {
  model: null,
  user: null, // the id of the user of the log; null for a guest
  changed: false, // whether that history was changed here
  history: [], // { item_id, title, timestamp, logged }
  all: false, // whether a long history is shown whole
  answers: { log: null, fair: null },
  asked: { log: null, fair: null },
  most: { popularity: 0, clicks: 0 }, // the popularity of the longest bar, and the number of clicks in the log
  acts: false, // whether the page acts as the user, or is a preview that records nothing
  earlier: 0, // the number of items of the history that the service did not list
};
let debias = null;
let box = null;

const guest = `guest-${key(8)}`;

function key(length) {
  const bytes = window.crypto.getRandomValues(new Uint8Array(length));
  return [...bytes].map((one) => (one % 36).toString(36)).join("");
}

// The history

const sides = () => (debias ? SIDES : ["fair"]);

function changed(words) {
  drawHistory();
  if (words) say(words);
  refresh(sides());
}

function add(item) {
  const { item_id: id } = item;
  if (state.history.some((one) => one.item_id === id)) {
    toast(`${full(item)} is in the history already.`);
    return;
  }
  state.changed = true;
  state.history.push({ item_id: id, title: full(item) });
  changed(`${full(item)} added.`);
}

function remove(at) {
  const [gone] = state.history.splice(at, 1);
  state.changed = true;
  changed(`${gone.title} removed.`);
  const left = by("chips").querySelectorAll(".chip button");
  const place = Math.min(at - Math.max(0, state.all ? 0 : state.history.length - SHOWN), left.length - 1);
  (left[Math.max(place, 0)] ?? by("search")).focus();
}

function startOver() {
  Object.assign(state, { user: null, changed: false, history: [], earlier: 0, all: false });
  changed("The history is empty.");
  box.focus();
}

function drawHistory() {
  const { history, user, all } = state;
  if (state.model) drawMode();
  by("history").hidden = history.length === 0 && user === null;
  by("examples").hidden = !by("history").hidden;
  by("history-head").textContent = user === null ? "Your history"
    : state.changed ? `History of user ${user}, changed here` : `History of user ${user}`;
  const from = all ? 0 : Math.max(0, history.length - SHOWN);
  const chips = history.slice(from).map((item, place) => {
    const cross = button("", "×", () => remove(from + place));
    cross.setAttribute("aria-label", `Remove ${item.title} from the history`);
    const chip = made("li", "chip", made("span", "chip-title", item.title), cross);
    if (item.logged) chip.insertBefore(made("span", "logged", "logged"), cross);
    return chip;
  });
  const hidden = from + state.earlier;
  if (from > 0) {
    chips.unshift(made("li", "", button("quiet", `${plural(hidden, "earlier one")}`, () => {
      state.all = true;
      drawHistory();
      by("chips").querySelector("button").focus();
    })));
  } else if (hidden) chips.unshift(made("li", "soft", `${plural(hidden, "earlier one")},`));
  if (!chips.length) chips.push(made("li", "soft", "Nothing yet."));
  by("chips").replaceChildren(...chips);
}

async function become(user) {
  const error = by("user-error");
  error.textContent = "";
  if (!user) {
    error.textContent = "Type a user id first.";
    by("user").focus();
    return;
  }
  try {
    const found = await ask(`v1/users/${text(user)}`);
    const history = found.newest.map((one) => ({ ...one, title: full(one) })).reverse();
    const earlier = Math.max(0, (found.positives ?? 0) - history.length);
    Object.assign(state, { user, changed: false, history, earlier, all: false });
    by("user").value = "";
    changed(`User ${user}: ${counted(history.length + earlier)} in the history.`);
  } catch (trouble) {
    error.textContent = trouble.status === 404 ? `The log has no user with the id “${user}”.`
      : `${trouble.title ?? "That failed"}. ${trouble.fields?.map(({ reason }) => reason).join(" ") ?? ""}`;
    by("user").focus();
  }
}

// The lists

// The user of a request. A history that was changed here belongs to no user of the log, but to a guest.
const asked = () => (state.user !== null && !state.changed ? { user_id: state.user }
  : { user_id: guest, history: state.history.map(timed) });

// An item of a history as the service reads it; what was added on this page has no time, and counts as just past.
const timed = ({ item_id: id, timestamp }) => (timestamp ? { item_id: id, timestamp } : { item_id: id });

const request = (side) => ({
  ...asked(),
  log: state.acts,
  ...(debias ? { debias: side === "log" ? 0 : debias.value() } : {}),
  ...(state.model?.explains ? { explain: true } : {}),
  k: lists.LONG,
});

async function refresh(which) {
  by("append-only").hidden = state.history.length === 0;
  if (state.history.length === 0 && state.user === null) {
    for (const side of SIDES) {
      state.asked[side]?.abort();
      state.answers[side] = null;
      lists.empty(side, side === "log" ? `Choose ${noun.many}, and what the log would click appears here.`
        : `Choose ${noun.many}, and what you would like appears here, popular or not.`);
    }
    return;
  }
  const began = performance.now();
  const done = await Promise.all(which.map(fetched));
  if (!done.every(Boolean)) return;
  drawLists();
  const took = Math.max(...which.map((side) => state.answers[side].took_ms ?? performance.now() - began));
  answered(took);
  const ids = new Set(state.answers.log?.items.map((item) => item.item_id) ?? []);
  const both = state.answers.fair.items.filter((item) => ids.has(item.item_id)).length;
  if (debias) say(`Both lists are up to date. ${counted(both)} in both.`);
  else say("The list is up to date.");
}

// Whether the newest request of a list was answered.
async function fetched(side) {
  state.asked[side]?.abort();
  const mine = new AbortController();
  state.asked[side] = mine;
  lists.busy(side, true);
  try {
    state.answers[side] = await ask("v1/recommendations", { body: request(side), signal: mine.signal });
    return true;
  } catch (error) {
    if (error.name !== "AbortError" && state.asked[side] === mine) {
      state.answers[side] = null;
      lists.failed(side, error, () => refresh(sides()));
    }
    return false;
  }
}

function drawLists() {
  const { log, fair } = state.answers;
  if (debias && log) lists.draw("log", log, fair, state.most, onCards());
  if (fair) lists.draw("fair", fair, debias ? log : null, state.most, onCards());
}

// The type of the events that the page logs.
const kind = () => state.model.positive_types?.[0] ?? "click";

// The button on each card. In a preview it changes the history on this page, and nothing else.
const onCards = () => (state.acts ? { words: `Log “${kind()}”`, press: logged }
  : { words: "Add to the history", press: added });

async function added(side, item, pressed) {
  const place = [...pressed.closest("ol").children].indexOf(pressed.closest("li"));
  const named = full({ ...remembered(item.item_id), ...item });
  state.changed = true;
  state.history.push({ item_id: item.item_id, title: named });
  drawHistory();
  say(`${named} added.`);
  await refresh(sides());
  lists.buttonAt(side, place)?.focus({ preventScroll: true });
}

function drawMode() {
  const { acts, user, changed: isChanged } = state;
  const who = user === null || isChanged ? "a guest" : `user ${user}`;
  by("mode").classList.toggle("acting", acts);
  by("mode-words").replaceChildren(made("b", "", acts ? `Acting as ${who}.` : "Preview."),
    acts ? " The store records the lists below as shown, and each event that you log."
      : " Nothing on this page is recorded.");
  by("act-note").textContent = acts
    ? `“Log “${kind()}”” writes an event to the store, and the lists change at once. It cannot be undone here.`
    : "“Add to the history” changes the history on this page only.";
}

async function logged(side, item, pressed) {
  const place = [...pressed.closest("ol").children].indexOf(pressed.closest("li"));
  pressed.disabled = true;
  pressed.textContent = "Logging …";
  const event = {
    event_id: `page-${key(20)}`, user_id: asked().user_id, item_id: item.item_id,
    type: kind(), ...moment(),
  };
  const id = state.answers[side]?.recommendation_id;
  if (id) event.recommendation_id = id;
  try {
    const found = await ask("v1/events", { body: { events: [event] } });
    if (found.rejected?.length) {
      throw new Trouble("bad", "The event was refused", "", { fields: found.rejected });
    }
    await meet();
    const named = full({ ...remembered(item.item_id), ...item });
    state.history.push({ item_id: item.item_id, title: named, logged: true });
    toast(`Logged: ${named}.`, "good");
    drawHistory();
    await refresh(sides());
    lists.buttonAt(side, place)?.focus({ preventScroll: true });
  } catch (error) {
    pressed.disabled = false;
    pressed.textContent = onCards().words;
    const fields = error.fields?.map(({ field, reason }) => `${field}: ${reason}`).join("; ");
    const why = fields || error.words || "";
    toast(`Not logged. ${error.title ?? "Something failed"}. ${why}`, "bad");
  }
}

// In an old log, what happens here gets the moment just after its newest event. In a log that still grows,
// the clock of the service is right, and no moment is sent.
function moment() {
  const newest = Date.parse(state.model.now ?? state.model.newest_event);
  const old = Date.now() - newest > 86_400_000; // never so if there is no date
  return old ? { timestamp: new Date(newest + 1000).toISOString() } : {};
}

// The head, the examples and the other views

function answered(took) {
  const { model } = state;
  const words = made("span", "", made("b", "", model.model ?? model.name ?? "A model"),
    ` version ${model.version ?? "?"} answers`);
  by("answers").replaceChildren(made("span", "dot good"), words);
  if (took === undefined) return;
  by("answers").append(made("span", "took", `${took < 1 ? "less than 1" : Math.round(took)} ms`));
}

function examples(items) {
  state.most.popularity = Math.max(0, ...items.map((item) => item.popularity ?? 0));
  const described = items.map(titled).some(({ year, genres }) => year || genres.length);
  by("lists").classList.toggle("bare", !described); // no room is kept for years and genres
  const parts = [];
  const start = (chosen) => {
    state.history = chosen.map((item) => ({ item_id: item.item_id, title: full(item) }));
    state.changed = true;
    changed(`A history of ${counted(chosen.length)}.`);
    by("chips").querySelector("button")?.focus();
  };
  const tastes = tasteful(items);
  if (tastes.length) {
    const picks = tastes.map(([name, some]) => {
      const node = button("pick", "", () => start(some));
      const names = some.map((item) => titled(item).title);
      node.append(made("b", "", name), made("span", "", names.join(" · ")));
      return node;
    });
    parts.push(made("p", "label", "Or start as a user who likes"), made("div", "picks tastes", ...picks));
  }
  if (items.length) {
    parts.push(made("p", "label", `Or with one of the popular ${noun.many}`), made("div", "picks",
      ...items.slice(0, 8).map((item) => button("pick", full(item), () => start([item])))));
  }
  by("examples").replaceChildren(...parts);
}

// Up to three tastes: the genres that the most popular items have, with three items each.
function tasteful(items) {
  const by_genre = new Map();
  for (const item of items) {
    for (const genre of titled(item).genres) by_genre.set(genre, [...by_genre.get(genre) ?? [], item]);
  }
  const used = new Set();
  const found = [];
  for (const [genre, all] of [...by_genre].sort((one, other) => one[1].length - other[1].length)) {
    const free = all.filter((item) => !used.has(item));
    if (free.length < 3 || found.length === 3) continue;
    free.slice(0, 3).forEach((item) => used.add(item));
    found.push([genre, free.slice(0, 3)]);
  }
  return found;
}

function report() {
  const panel = by("report");
  if (panel.childElementCount) return;
  if (state.model?.report) {
    const link = made("a", "plain", "Open the report");
    Object.assign(link, { href: "report", target: "_blank", rel: "noopener" });
    panel.replaceChildren(made("section", "hollow", sleeping(), made("h2", "", "How good is it?"),
      made("p", "", "The report compares the trained models on the test set, with confidence intervals. "
        + "It has a page of its own."), link));
    return;
  }
  panel.replaceChildren(made("section", "hollow", sleeping(), made("h2", "", "No report here yet"),
    made("p", "", "A report compares trained models on one page, with confidence intervals. "
      + "Make one from a folder that ", made("code", "", "unskew bench"),
    " has filled, and start the service with it:"),
    made("pre", "", "unskew report DIR --html FILE\nunskew serve RUN --store STORE --report FILE")));
}

const views = ["try", "monitor", "report"];

function show(view, focus) {
  for (const name of views) {
    const tab = by(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === view));
    tab.tabIndex = name === view ? 0 : -1;
    by(name).hidden = name !== view;
  }
  if (focus) by(`tab-${view}`).focus();
  if (view === "monitor") monitor();
  if (view === "report" && state.model) report();
}

function tabs() {
  const chosen = () => (views.includes(location.hash.slice(1)) ? location.hash.slice(1) : "try");
  const go = (view, focus) => {
    window.history.replaceState(null, "", view === "try" ? location.pathname : `#${view}`);
    show(view, focus);
  };
  views.forEach((name, at) => {
    by(`tab-${name}`).addEventListener("click", () => go(name));
    by(`tab-${name}`).addEventListener("keydown", (event) => {
      const to = { ArrowRight: at + 1, ArrowLeft: at + 2, Home: 0, End: 2 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      go(views[to % 3], true);
    });
  });
  window.addEventListener("hashchange", () => show(chosen()));
  show(chosen());
}

// The model that answers, and the newest moment of its log.
async function meet() {
  state.model = await ask("v1/model");
  state.most.clicks = state.model.positives ?? 0;
  by("try").classList.toggle("explains", Boolean(state.model.explains)); // room for the reasons
  if (state.model.noun) call(state.model.noun);
  drawMode();
}

async function begin() {
  by("trouble").replaceChildren();
  try {
    await meet();
  } catch (error) {
    by("answers").replaceChildren(made("span", "dot bad"), made("span", "", "No model answers"));
    by("trouble").replaceChildren(troubled(error, begin));
    by("try").inert = true;
    return;
  }
  by("try").inert = false;
  const turns = Boolean(state.model.debias?.available);
  by("debias-box").hidden = !turns;
  by("no-debias").hidden = turns;
  by("list-log").hidden = !turns;
  by("lists").classList.toggle("one", !turns);
  if (turns) debias ??= debiasBox(state.model.debias_curve, () => refresh(["fair"]));
  else {
    by("head-fair").textContent = "What this model recommends";
    by("list-fair").querySelector(".about").textContent = "What is most likely to be clicked next.";
  }
  const follow = turns ? "Both lists below change" : "The list below changes";
  by("start-note").textContent = `Name a few of ${counted(state.model.items)}. ${follow} at once.`;
  answered();
  if (location.hash === "#report") report();
  refresh(sides());
  try {
    examples(await search("", LISTED));
  } catch (error) {
    by("examples").replaceChildren(troubled(error, begin));
  }
}

box = searchBox(add);
by("again").addEventListener("click", startOver);
by("user-form").addEventListener("submit", (event) => {
  event.preventDefault();
  become(by("user").value.trim());
});
by("act").addEventListener("change", () => {
  state.acts = by("act").checked;
  drawMode();
  refresh(sides());
});
by("act").checked = false; // also after the page was loaded again
drawHistory();
tabs();
begin();
