// The debiasing strength between the two lists, and the validation metrics at each strength.

import { by, debounced, made, short, svg } from "./dom.js";

const [WIDE, HIGH] = [340, 118];
const PAD = { left: 8, right: 8, top: 14, bottom: 20 };
const LINES = { // a test, its description, and the class of its line
  ordinary: ["Ordinary test: the next click", "line-log"],
  balanced: ["Balanced test: all count the same, popular or not", "line-fair"],
};

// The points of a curve that have a value in both tests, by debiasing strength.
const points = (curve) => (curve ?? [])
  .filter((row) => [row.debias, row.ordinary, row.balanced].every(Number.isFinite))
  .sort((one, other) => one.debias - other.debias);

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

const place = (debias) => (debias === 0 ? "clicks as logged"
  : debias === 1 ? "equal exposure" : "between the two");

function words(debias) {
  if (debias === 0) return "At 0, the effect of exposure stays in the scores: both lists are the same.";
  if (debias === 1) return "At 1, the effect of exposure is removed from the second list.";
  return `At ${debias.toFixed(2)}, a part of the effect of exposure is removed from the second list.`;
}

function heads(debias) {
  if (debias === 1) {
    return ["What you would like, if everything were shown equally often",
      "The same taste, without the effect of exposure."];
  }
  if (debias === 0) {
    return ["The same list, with the debiasing strength at 0", "Raise it to remove the effect of exposure."];
  }
  return [`In between, with the debiasing strength at ${debias.toFixed(2)}`,
    "A part of the effect of exposure is left."];
}

function between(known, debias, name) {
  const after = known.findIndex((row) => row.debias >= debias);
  if (after < 0) return known[known.length - 1][name];
  if (after === 0) return known[0][name];
  const [low, high] = [known[after - 1], known[after]];
  const fraction = (debias - low.debias) / (high.debias - low.debias || 1);
  return low[name] + fraction * (high[name] - low[name]);
}

// Two lines over the debiasing strength, and a mark at its present value. Returns what moves the mark.
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
  const all = known.flatMap((row) => [row.ordinary, row.balanced]);
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
  const head = made("figcaption", "", "NDCG@10 at each debiasing strength, on the validation set");
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
  const fraction = Math.round(100 * (value / start - 1));
  return ` (${fraction > 0 ? "+" : fraction < 0 ? "−" : "±"}${Math.abs(fraction)} %)`;
}
