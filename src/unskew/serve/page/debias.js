// The debiasing strength between the two lists, and what was measured along it.

import { by, debounced, made, short, svg } from "./dom.js";

const [WIDE, HIGH] = [340, 118];
const PAD = { left: 8, right: 8, top: 14, bottom: 20 };
const LINES = { // a test, what it says in plain words, and its line
  ordinary: ["Guessing the next click", "line-log"],
  unbiased: ["The same, every title counting the same", "line-fair"],
};

// The points of a curve, whatever form it comes in: [{ debias, ordinary, unbiased }].
export function points(curve) {
  if (!curve) return [];
  const rows = Array.isArray(curve) ? curve : curve.points ?? [];
  return rows.map((row) => ({
    debias: Number(row.debias),
    ordinary: Number(row.ordinary),
    unbiased: Number(row.unbiased ?? row.balanced ?? row.unbiased_test),
  })).filter((row) => Object.values(row).every(Number.isFinite)).sort((one, other) => one.debias - other.debias);
}

export function debiasBox(curve, turned) {
  const input = by("debias");
  const known = points(curve);
  const late = debounced(turned, 180);
  const draw = known.length > 1 ? chart(known) : () => {};
  const show = () => {
    const debias = Number(input.value);
    by("debias-value").textContent = debias.toFixed(2);
    document.documentElement.style.setProperty("--debias", String(debias));
    input.setAttribute("aria-valuetext", `${debias.toFixed(2)}: ${place(debias)}`);
    by("debias-words").textContent = words(debias);
    const [head, about] = heads(debias);
    by("head-fair").textContent = head;
    by("list-fair").querySelector(".about").textContent = about;
    draw(debias);
  };
  input.addEventListener("input", () => {
    show();
    late(Number(input.value));
  });
  show();
  return { value: () => Number(input.value) };
}

const place = (debias) => (debias === 0 ? "what the log would click"
  : debias === 1 ? "as if everything were shown equally often" : "between the two");

function words(debias) {
  if (debias === 0) return "At 0, titles that were shown a lot keep their head start: both lists are the same.";
  if (debias === 1) return "At 1, the head start of what was shown a lot is taken out of the right list.";
  return `At ${debias.toFixed(2)}, the right list takes out a part of the head start of what was shown a lot.`;
}

function heads(debias) {
  if (debias === 1) {
    return ["What you would like, if everything were shown equally often",
      "The same taste, without the head start of what is popular."];
  }
  if (debias === 0) {
    return ["The same list, with the debiasing strength at 0", "Turn it up, and this list leaves the log’s habits."];
  }
  return [`In between, with the debiasing strength at ${debias.toFixed(2)}`,
    "Part of the head start of what is popular is left."];
}

function between(known, debias, name) {
  const after = known.findIndex((row) => row.debias >= debias);
  if (after < 0) return known[known.length - 1][name];
  if (after === 0) return known[0][name];
  const [low, high] = [known[after - 1], known[after]];
  const share = (debias - low.debias) / (high.debias - low.debias || 1);
  return low[name] + share * (high[name] - low[name]);
}

// Two lines over the debiasing strength, each on its own scale, and where the debiasing strength stands. Returns what moves the mark.
function chart(known) {
  const figure = by("curve");
  const x = (debias) => PAD.left + debias * (WIDE - PAD.left - PAD.right);
  const scales = {};
  const drawing = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img" });
  for (const at of [0, 0.5, 1]) {
    drawing.append(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: PAD.top, y2: HIGH - PAD.bottom }));
    const anchor = at === 0 ? "start" : at === 1 ? "end" : "middle";
    drawing.append(svg("text", { x: x(at), y: HIGH - 5, "text-anchor": anchor }, String(at)));
  }
  const all = known.flatMap((row) => [row.ordinary, row.unbiased]);
  const top = Math.max(...all) || 1;
  const y = (value) => PAD.top + (1 - Math.max(value, 0) / top) * (HIGH - PAD.top - PAD.bottom);
  for (const [name, [, style]] of Object.entries(LINES)) {
    scales[name] = y;
    const path = known.map((row) => `${x(row.debias).toFixed(1)} ${y(row[name]).toFixed(1)}`);
    drawing.append(svg("path", { class: style, d: `M${path.join("L")}` }));
  }
  const cursor = svg("line", { class: "cursor", y1: PAD.top, y2: HIGH - PAD.bottom });
  const dots = Object.fromEntries(Object.entries(LINES).map(
    ([name, [, style]]) => [name, svg("circle", { class: `${style} spot`, r: 4.5 })]));
  drawing.append(cursor, ...Object.values(dots));
  const legend = made("ul", "curve-legend");
  const cells = {};
  for (const [name, [said, style]] of Object.entries(LINES)) {
    cells[name] = made("b");
    const swatch = svg("svg", { viewBox: "0 0 22 8", class: "swatch", "aria-hidden": "true" },
      svg("path", { class: style, d: "M1 4H21" }));
    legend.append(made("li", "", swatch, `${said}: `, cells[name]));
  }
  const head = made("figcaption", "", "Measured along the debiasing strength, on what the model had not seen");
  figure.replaceChildren(head, drawing, legend);
  figure.hidden = false;
  return (debias) => {
    cursor.setAttribute("x1", x(debias));
    cursor.setAttribute("x2", x(debias));
    const said = [];
    for (const name of Object.keys(LINES)) {
      const [value, start] = [between(known, debias, name), known[0][name]];
      dots[name].setAttribute("cx", x(debias));
      dots[name].setAttribute("cy", scales[name](value));
      cells[name].textContent = `${short(value)}${debias > 0 ? change(value, start) : ""}`;
      said.push(`${LINES[name][0]}: ${cells[name].textContent}`);
    }
    drawing.setAttribute("aria-label", `At debias ${debias.toFixed(2)}. ${said.join(". ")}.`);
  };
}

function change(value, start) {
  if (!(start > 0)) return "";
  const share = Math.round(100 * (value / start - 1));
  return ` (${share > 0 ? "+" : share < 0 ? "−" : "±"}${Math.abs(share)} %)`;
}
