// The two lists of cards.

import { button, by, calm, count, full, made, percent, plural, short, titled } from "./dom.js";
import { details, remembered } from "./items.js";
import { troubled } from "./api.js";

export const LONG = 8; // cards in a list
const REASONS = 4; // of a card

const section = { log: by("list-log"), fair: by("list-fair") };
const body = (side) => section[side].querySelector(".body");
const sum = (side) => section[side].querySelector(".sum");

export function skeletons(side) {
  const list = made("ol", "cards waiting");
  list.setAttribute("aria-hidden", "true");
  for (let at = 0; at < LONG; at += 1) {
    list.append(made("li", "card", made("span", "rank"), made("div", "card-main", made("span", "bone wide"),
      made("span", "bone"), made("span", "bone low"), made("span", "bone reason"))));
  }
  sum(side).textContent = " ";
  body(side).replaceChildren(list);
}

// The cards stay in place while newer ones are requested.
export function busy(side, is) {
  section[side].setAttribute("aria-busy", String(is));
  if (is && !body(side).querySelector(".cards")) skeletons(side);
}

export function failed(side, error, again) {
  busy(side, false);
  sum(side).textContent = "";
  body(side).replaceChildren(troubled(error, again));
}

export function empty(side, words) {
  busy(side, false);
  sum(side).textContent = "";
  const ghosts = made("div", "ghosts", ...[0, 1, 2].map(() => made("span", "ghost")));
  ghosts.setAttribute("aria-hidden", "true");
  body(side).replaceChildren(made("div", "empty", ghosts, made("p", "", words)));
}

// Draw one list. other: the answer of the other list, or null; most: the values of the longest bars.
// acts: the words of the button on each card, and what pressing it does.
export function draw(side, answer, other, most, acts) {
  busy(side, false);
  const before = places(side);
  const elsewhere = new Map((other?.items ?? []).map((item) => [item.item_id, item.rank]));
  const scores = answer.items.map((item) => item.score);
  const range = { low: Math.min(...scores), high: Math.max(...scores) };
  const list = made("ol", "cards");
  for (const item of answer.items) {
    list.append(card(side, item, elsewhere.get(item.item_id), range, most, acts));
  }
  sum(side).textContent = summary(answer, elsewhere, other !== null, most);
  if (answer.items.length === 0) {
    empty(side, "There is nothing left to recommend: everything is in the history.");
    return;
  }
  body(side).replaceChildren(list);
  if (answer.source && answer.source !== "model") {
    body(side).prepend(made("p", "note small", fallback(answer)));
  }
  glide(side, before);
}

function fallback(answer) {
  const reason = answer.reason ? `: ${answer.reason}` : "";
  return `This list does not come from the trained model${reason}.`;
}

// Popularity is a fraction of all clicks; the page shows their number.
const clicks = (item, most) => Math.round(item.popularity * most.clicks);

function summary(answer, elsewhere, compared, most) {
  const popular = answer.items.map((item) => clicks(item, most)).filter(Number.isFinite);
  const both = answer.items.filter((item) => elsewhere.has(item.item_id)).length;
  const said = [];
  if (popular.length) {
    const mean = popular.reduce((total, one) => total + one, 0) / popular.length;
    said.push(`On average ${plural(Math.round(mean), "click")} in the log`);
  }
  if (compared) {
    said.push(both ? `${count(both)} of ${count(answer.items.length)} in both lists` : "none in both lists");
  }
  return said.length ? `${said.join("; ")}.` : " ";
}

function card(side, item, rank, range, most, acts) {
  const { title } = titled(item);
  const meta = made("p", "meta");
  const named = made("h3", "title", title);
  const describe = (known) => {
    const { year, genres } = titled({ ...known, title: item.title ?? known?.title, item_id: item.item_id });
    meta.textContent = [year, genres.join(", ")].filter(Boolean).join(" · ") || " ";
  };
  describe(remembered(item.item_id) ?? {});
  if (remembered(item.item_id) === undefined) details(item.item_id).then((known) => known && describe(known));
  const act = button("watch", acts.words, () => acts.press(side, item, act));
  act.setAttribute("aria-label", `${acts.words}: ${full(item)}`);
  const node = made("li", "card", made("span", "rank", String(item.rank)),
    made("div", "card-main", named, made("div", "card-head", meta, badge(rank, item)),
      made("div", "card-foot", bars(item, range, most), act), why(item)));
  node.dataset.item = item.item_id;
  if (rank !== undefined) node.classList.add("both");
  return node;
}

// The largest parts of the score, in words. The base is the same for all items of a list.
function why(item) {
  const parts = (item.because ?? []).filter((each) => each.kind !== "base").slice(0, REASONS);
  if (parts.length === 0) return null;
  const rows = parts.map((each) => made("li", "", `${each.text} `,
    made("span", "value", `${each.part < 0 ? "−" : "+"}${Math.abs(each.part).toFixed(2)}`)));
  return made("details", "why", made("summary", "", "Why"), made("ul", "", ...rows));
}

function badge(rank, item) {
  if (item.exposed) return made("span", "badge", "drawn at random");
  if (rank === undefined) return null;
  return made("span", "badge", `#${rank} in the other list`);
}

// Score, popularity and exposure, each as a number and as a bar.
function bars(item, range, most) {
  const rows = [];
  const spread = range.high - range.low;
  if (Number.isFinite(item.score)) {
    rows.push(["Score", short(item.score), spread > 0 ? 0.12 + 0.88 * (item.score - range.low) / spread : 1]);
  }
  if (Number.isFinite(item.popularity)) {
    rows.push(["Popularity", plural(clicks(item, most), "click"),
      item.popularity / Math.max(most.popularity, item.popularity, 1e-12)]);
  }
  if (Number.isFinite(item.propensity)) {
    rows.push(["Exposure", percent(item.propensity), item.propensity]);
  }
  const list = made("dl", "bars");
  for (const [name, value, fraction] of rows) {
    const bar = made("span", "bar");
    bar.setAttribute("aria-hidden", "true");
    bar.style.setProperty("--fraction", String(Math.max(0, Math.min(1, fraction))));
    list.append(made("div", "", made("dt", "", name), made("dd", "", made("span", "value", value), bar)));
  }
  return list;
}

// Cards move from their old places to their new ones.
const places = (side) => new Map([...body(side).querySelectorAll(".card[data-item]")].map(
  (node) => [node.dataset.item, node.getBoundingClientRect().top]));

function glide(side, before) {
  if (calm() || before.size === 0) return;
  for (const node of body(side).querySelectorAll(".card[data-item]")) {
    const was = before.get(node.dataset.item);
    const shift = was === undefined ? null : was - node.getBoundingClientRect().top;
    if (shift === null) node.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 260, easing: "ease-out" });
    else if (shift) {
      node.animate([{ transform: `translateY(${shift}px)` }, { transform: "none" }],
        { duration: 320, easing: "cubic-bezier(0.2, 0.7, 0.2, 1)" });
    }
  }
}

// The button of the card at a place, for the focus after a card has gone.
export function buttonAt(side, place) {
  const all = body(side).querySelectorAll(".watch");
  return all[Math.min(place, all.length - 1)] ?? null;
}
