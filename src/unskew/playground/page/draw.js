/* Elements of the page, and the line charts. */
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 520, HEIGHT = 150, LEFT = 46, RIGHT = 56, TOP = 16, BOTTOM = 22;
const NEWEST = 150; // days that a chart shows

export function element(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function shape(name, attributes, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function drawPlot(box, state, name) {
  const days = state.days.slice(-NEWEST);
  const first = days[0].day, last = Math.max(days.at(-1).day, first + 20);
  const x = (day) => LEFT + ((day - first) / (last - first)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - value) * (HEIGHT - TOP - BOTTOM);
  const marks = [];
  for (const value of [0, 0.5, 1]) {
    marks.push(
      shape("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      shape("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" },
        name === "gini" ? String(value) : `${100 * value} %`));
  }
  days.forEach((day, place) => {
    if (place && day.debias !== days[place - 1].debias) {
      marks.push(
        shape("line", { class: "move", x1: x(day.day), x2: x(day.day), y1: TOP - 4, y2: y(0) }),
        shape("text", { class: "move-value", x: x(day.day) + 3, y: TOP + 2 }, day.debias.toFixed(2)));
    }
  });
  for (const night of state.nights.filter((one) => one.day >= first)) {
    const kind = night.verdict === "published" ? "night" : "refused";
    marks.push(shape("line", { class: kind, x1: x(night.day), x2: x(night.day), y1: y(0), y2: y(0) + 6 }));
  }
  const known = days.filter((day) => day[name] !== null);
  const points = known.map((day) => `${x(day.day).toFixed(1)} ${y(day[name]).toFixed(1)}`);
  if (points.length) {
    const end = known.at(-1);
    const text = name === "gini" ? end.gini.toFixed(2) : `${(100 * end[name]).toFixed(0)} %`;
    marks.push(
      shape("path", { class: "curve-line", d: `M${points.join("L")}` }),
      shape("circle", { class: "now", r: 3.5, cx: x(end.day), cy: y(end[name]) }),
      shape("text", { class: "now-value", x: x(end.day) + 8, y: y(end[name]) + 4 }, text));
  }
  marks.push(
    shape("text", { class: "tick", x: LEFT, y: HEIGHT - 2 }, `day ${first}`),
    shape("text", { class: "tick", x: WIDTH - RIGHT, y: HEIGHT - 2, "text-anchor": "end" }, `day ${last}`));
  box.replaceChildren(shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
    "aria-label": `${name.replace("_", " ")} by day` }, ...marks));
}
