// Small helpers: elements, numbers as text, and messages for screen readers.

export const by = (id) => document.getElementById(id);

// An element with a class and its content: text, nodes, or nothing. Text is never read as HTML.
export function made(tag, name = "", ...inside) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...inside.filter((one) => one !== null && one !== undefined && one !== ""));
  return node;
}

export function button(name, text, act) {
  const node = made("button", name, text);
  node.type = "button";
  node.addEventListener("click", act);
  return node;
}

export function svg(tag, attributes, ...inside) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...inside);
  return node;
}

// A message for screen readers; the same message twice is announced twice.
let silence = 0;
export function say(words) {
  window.clearTimeout(silence);
  by("heard").textContent = "";
  silence = window.setTimeout(() => { by("heard").textContent = words; }, 60);
}

export function toast(words, kind = "") {
  const node = made("p", `toast ${kind}`, words);
  by("toasts").replaceChildren(node);
  say(words);
  window.setTimeout(() => node.remove(), 6000);
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const exact = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => (isNumber(value) ? exact.format(value) : "–");

// A number of any size with about three digits.
export function short(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  if (size >= 1000) return exact.format(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toFixed(digits).replace("-", "−");
}

export const percent = (value) => {
  if (!isNumber(value)) return "–";
  const hundredths = 100 * value;
  if (hundredths > 0 && hundredths < 0.05) return "<0.1 %";
  return `${hundredths.toFixed(hundredths !== 0 && Math.abs(hundredths) < 9.95 ? 1 : 0)} %`;
};

export const plural = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

export function debounced(act, wait) {
  let timer = 0;
  const later = (...given) => {
    window.clearTimeout(timer);
    timer = window.setTimeout(() => act(...given), wait);
  };
  later.cancel = () => window.clearTimeout(timer);
  return later;
}

// The title and the year of an item, whether the year stands in the title or among the features.
export function titled(item) {
  const said = item.title ? String(item.title).trim() : `Item ${item.item_id}`;
  const found = said.match(/^(.+?)\s*\((\d{4})\)$/);
  const features = item.features || {};
  const given = features.year ?? features.Year ?? item.year;
  const year = found ? found[2] : isNumber(Number(given)) && given !== null ? String(Math.round(given)) : "";
  const genres = features.genres ?? features.genre ?? item.genres ?? "";
  const all = Array.isArray(genres) ? genres : String(genres ?? "").split(/[|;,]/);
  const list = all.map((one) => String(one).trim());
  return {
    title: found ? found[1] : said,
    year,
    genres: list.filter((one) => one && !one.startsWith("(no ")),
  };
}

export const full = (item) => {
  const { title, year } = titled(item);
  return year ? `${title} (${year})` : title;
};

export const calm = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;
