// The monitor: what happened and what was shown, window by window.

import { ask, troubled } from "./api.js";
import { button, by, count, made, percent, say, short, svg } from "./dom.js";

const GROUPS = [
  ["What happened", [
    ["events", "Events", count, "of any type"],
    ["positives", "Clicks", count, "and other events of a positive type"],
    ["users", "Users", count, "with an event of any type"],
    ["new_users", "New users", count, "with their first event"],
    ["new_items", "New titles", count, "clicked for the first time"],
  ]],
  ["What was shown and clicked", [
    ["shown", "Titles shown", count, "each once per impression"],
    ["gini_shown", "Gini index, shown", short, "0 is even; near 1 a few titles have everything"],
    ["gini_clicked", "Gini index, clicked", short, "the same for clicks"],
    ["coverage_shown", "Catalogue shown", percent, "fraction of all titles that were shown to any user"],
    ["lift", "Popularity lift", short, "above 1: shown titles are more popular than clicked ones"],
    ["age_shown", "Age of what was shown", (days) => (days === null ? "–" : `${short(days)} d`),
      "median days since the first click of a title"],
  ]],
  ["What was recommended", [
    ["recommendations", "Lists recommended", count, ""],
    ["click_rate", "Click rate", percent, "fraction of recommended titles that were clicked"],
    ["fallback", "Fallback", percent, "fraction of lists that no model made"],
    ["random", "Shown at random", percent, "fraction of titles that were drawn at random"],
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
      made("p", "", "The monitor summarises the events of each week. Log one with “I watched "
        + "this”, or post events to ", made("code", "", "/v1/events"), ", and look again."),
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
  for (const [head, figures] of GROUPS) {
    const shown = figures.filter(([field]) => windows.some((window) => Number.isFinite(window[field])));
    if (!shown.length) continue;
    const grid = made("div", "spark-cards", ...shown.map((figure) => spark(figure, windows)));
    parts.push(made("section", "", made("h2", "", head), grid));
  }
  const about = made("p", "soft", "The newest window first. A dash stands for a value that is not known.");
  parts.push(made("section", "", made("h2", "", "All values"), about, table(windows)));
  return parts;
}

// One value: the newest, and a line over all windows.
function spark([field, name, write, meaning], windows) {
  const values = windows.map((window) => window[field]);
  const known = values.filter(Number.isFinite);
  const last = windows.findLast((window) => window.whole && Number.isFinite(window[field]))
    ?? windows.findLast((window) => Number.isFinite(window[field]));
  const node = made("div", "spark", made("h3", "", name), made("p", "spark-value", write(last[field])),
    line(values, windows.map((window) => window.whole !== false)));
  node.querySelector("svg").setAttribute("aria-label",
    `${name}: ${known.length} windows, from ${write(known[0])} to ${write(known[known.length - 1])}`);
  node.append(made("p", "spark-note", meaning || " "));
  return node;
}

function line(values, whole) {
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
  const end = values.findLastIndex(Number.isFinite);
  drawing.append(svg("circle", { cx: x(end), cy: y(values[end]), r: 3.2, class: whole[end] ? "" : "open" }));
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
  for (const [, figures] of GROUPS) {
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
