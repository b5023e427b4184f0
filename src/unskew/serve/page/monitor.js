// The monitor: what happened and what was shown, window by window.

import { ask, troubled } from "./api.js";
import { button, by, count, made, percent, say, short, svg } from "./dom.js";
import { Items, noun } from "./words.js";

const groups = () => [
  ["What happened", [
    ["events", "Events", count, "of any type"],
    ["positives", "Clicks", count, "and other events of a positive type"],
    ["users", "Users", count, "with an event of any type"],
    ["new_users", "New users", count, "with their first event"],
    ["new_items", `New ${noun.many}`, count, "clicked for the first time"],
  ]],
  ["What was shown and clicked", [
    ["shown", `${Items()} shown`, count, "each once per impression"],
    ["gini_shown", "Gini index, shown", short, "0 is even; near 1 a few have everything"],
    ["gini_clicked", "Gini index, clicked", short, "the same for clicks"],
    ["coverage_shown", "Catalogue shown", percent, `fraction of all ${noun.many} that were shown to any user`],
    ["lift", "Popularity lift", short, `above 1: shown ${noun.many} are more popular than clicked ones`],
    ["age_shown", "Age of what was shown", (days) => (days === null ? "–" : `${short(days)} d`),
      "median days since the first click"],
  ]],
  ["What was recommended", [
    ["recommendations", "Lists recommended", count, ""],
    ["click_rate", "Click rate", percent, `fraction of recommended ${noun.many} that were clicked`],
    ["fallback", "Fallback", percent, "fraction of lists that no model made"],
    ["random", "Shown at random", percent, `fraction of ${noun.many} that were drawn at random`],
  ]],
  ["What can be estimated without bias", [
    ["ess", "Effective sample", percent, "of the clicks, weighted by 1 / propensity"],
    ["calibration", "Calibration", short, "1 if the logged propensities are true"],
    ["ndcg", "Ranking quality", short, "NDCG@10 of each window before the model is trained on it"],
  ]],
];

export async function monitor() {
  const panel = by("monitor");
  const again = () => monitor();
  if (!panel.querySelector(".spark-cards")) panel.replaceChildren(bones());
  panel.setAttribute("aria-busy", "true");
  try {
    const found = await ask("v1/monitor");
    panel.replaceChildren(...drawn(found, again));
    say(`The monitor: ${found.verdict?.finding ?? `${found.windows.length} windows`}`);
  } catch (error) {
    panel.replaceChildren(troubled(error, again));
  } finally {
    panel.setAttribute("aria-busy", "false");
  }
}

const named = (window) => String(window.start).slice(0, 10);

function drawn(found, again) {
  const { windows } = found;
  if (!windows?.length) {
    return [made("section", "hollow", sleeping(), made("h2", "", "The store has no events yet"),
      made("p", "", "The monitor summarises the events of each week. Post events to ", made("code", "", "/v1/events"), ", and look again."),
      button("plain", "Look again", again))];
  }
  const judged = Object.keys(found.thresholds ?? {}).length > 0;
  const verdict = made("section", `verdict ${found.healthy === false ? "ill" : judged ? "well" : ""}`,
    made("div", "row", made("h2", "", found.verdict?.finding ?? "Window by window"),
      button("quiet", "Look again", again)));
  const said = found.crossed?.map((one) => one.sentence) ?? [];
  for (const words of new Set([...said, ...(found.notes ?? [])])) verdict.append(made("p", "", words));
  verdict.append(made("p", "", "The service computes these values at most once a minute."));
  const parts = [verdict];
  const window = windows.findLast((one) => one.whole) ?? windows[windows.length - 1];
  parts.push(made("p", "soft", `The large values are those of one window, which began on ${named(window)}`
    + `${window.whole === false ? " and is still open" : ""}: the filled points. The lines go over all windows; `
    + "a hollow point is of one that is still open."));
  for (const [head, figures] of groups()) {
    const shown = figures.filter(([field]) => windows.some((window) => Number.isFinite(window[field])));
    if (!shown.length) continue;
    const grid = made("div", "spark-cards", ...shown.map((figure) => spark(figure, windows, window)));
    parts.push(made("section", "", made("h2", "", head), grid));
  }
  const about = made("p", "soft", "The newest window first. A dash stands for a value that is not known. "
    + "Older windows are to the right; the table scrolls.");
  parts.push(made("section", "", made("h2", "", "All values"), about, table(windows)));
  return parts;
}

// One value: that of the window that all tiles show, and a line over all windows.
function spark([field, name, write, meaning], windows, window) {
  const values = windows.map((window) => window[field]);
  const known = values.filter(Number.isFinite);
  const node = made("div", "spark", made("h3", "", name), made("p", "spark-value", write(window[field])),
    line(values, windows.map((window) => window.whole !== false), windows.indexOf(window)));
  node.querySelector("svg").setAttribute("aria-label",
    `${name}: ${known.length} windows, from ${write(known[0])} to ${write(known[known.length - 1])}`);
  node.append(made("p", "spark-note", meaning || " "));
  return node;
}

// The filled point is the value that is written above the line; a hollow one is of a window that is still open.
function line(values, whole, written) {
  const [wide, high, pad] = [180, 40, 5];
  const known = values.filter(Number.isFinite);
  const [low, top] = [Math.min(...known), Math.max(...known)];
  const x = (at) => (values.length === 1 ? wide / 2 : pad + at * (wide - 2 * pad) / (values.length - 1));
  const y = (value) => (top === low ? high / 2 : high - pad - (value - low) / (top - low) * (high - 2 * pad));
  const path = [];
  let pen = "M";
  values.forEach((value, at) => {
    if (!Number.isFinite(value)) pen = "M";
    else {
      path.push(`${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`);
      pen = "L";
    }
  });
  const drawing = svg("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", class: "spark-line",
    preserveAspectRatio: "xMinYMid meet" },
    svg("path", { d: path.join("") }));
  for (const at of new Set([written, values.length - 1])) {
    if (Number.isFinite(values[at]) && (at === written || !whole[at])) {
      drawing.append(svg("circle", { cx: x(at), cy: y(values[at]), r: 3.2, class: whole[at] ? "" : "open" }));
    }
  }
  return drawing;
}

function table(windows) {
  const sheet = made("table", "sheet");
  const head = made("tr", "", cell("th", "Value", "col"));
  const newest = [...windows].reverse();
  for (const window of newest) {
    head.append(cell("th", window.whole === false ? `${named(window)} (open)` : named(window), "col"));
  }
  const body = made("tbody");
  for (const [, figures] of groups()) {
    for (const [field, name, write] of figures) {
      const row = made("tr", "", cell("th", name, "row"));
      for (const window of newest) {
        const value = window[field];
        const seen = field === "ndcg" && window.seen;
        row.append(cell("td", seen ? "seen" : Number.isFinite(value) ? write(value) : "–"));
      }
      body.append(row);
    }
  }
  sheet.append(made("thead", "", head), body);
  const wide = made("div", "wide", sheet);
  wide.tabIndex = 0;
  wide.setAttribute("role", "region");
  wide.setAttribute("aria-label", "All values of the monitor, scrolls sideways");
  return wide;
}

function cell(tag, words, scope) {
  const node = made(tag, "", words);
  if (scope) node.scope = scope;
  return node;
}

function bones() {
  const grid = made("div", "spark-cards");
  for (let at = 0; at < 8; at += 1) {
    const [name, value, line] = ["bone", "bone wide", "bone low"].map((one) => made("span", one));
    grid.append(made("div", "spark", name, value, line));
  }
  grid.classList.add("waiting");
  const said = made("p", "heard", "The monitor is being computed.");
  return made("section", "", said, grid);
}

export const sleeping = () => svg("svg", { viewBox: "0 0 120 48", class: "drawing", "aria-hidden": "true" },
  svg("path", { class: "line-log", d: "M6 36 26 30 46 34 66 22" }),
  svg("path", { class: "line-fair dashed", d: "M66 22 86 24 114 10" }));
