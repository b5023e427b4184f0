/* The page of the playground: it asks for the state of the shop each second and draws it. */
import { element } from "./draw.js";
import { drawPlot } from "./draw.js";

const AFTER = 1000; // milliseconds between two questions
const slider = document.querySelector("#debias");
const value = document.querySelector("#debias-value");
let moved = 0; // when the slider was moved last
let drawn = ""; // the state that is shown

const percent = (number) => (number === null || number === undefined ? "–" : `${(100 * number).toFixed(0)} %`);

function tile(name, text) {
  return element("div", { class: "tile" }, element("b", {}, text), element("span", {}, name));
}

function drawTiles(state) {
  const today = state.days.at(-1);
  document.querySelector("#tiles").replaceChildren(
    tile("of what was shown is clicked", percent(today.click_rate)),
    tile("of the products are shown", percent(today.coverage)),
    tile("of the clicks are on the most popular tenth", percent(today.top_sales)),
    tile("of the best possible taste (ground truth)", percent(today.liked)),
  );
}

function drawSellers(state) {
  document.querySelector("#sells-words").textContent =
    `Clicks in lists of the newest ${state.recent} days. Popularity in the past: 1 was clicked most of ` +
    `${state.products} products.`;
  const most = Math.max(...state.sellers.map((row) => row.liked), 0.01);
  document.querySelector("#sellers").replaceChildren(
    ...state.sellers.map((row) =>
      element("tr", {},
        element("td", {}, row.title),
        element("td", { class: "number" }, String(row.sold)),
        element("td", { class: "number" }, String(row.shown)),
        element("td", { class: "number" }, String(row.place)),
        element("td", {}, element("meter", { min: 0, max: most.toFixed(3), value: row.liked,
          "aria-label": `liked by ${percent(row.liked)} of the users` })))),
  );
}

function drawNews(state) {
  document.querySelector("#news").replaceChildren(
    ...state.news.map((row) =>
      element("li", {},
        element("b", {}, row.user), " ",
        row.clicked.length
          ? element("span", { class: "clicked" }, `clicked ${row.clicked.join(", ")}`)
          : element("span", {}, "clicked nothing"),
        element("span", { class: "shown" }, ` of ${row.shown.join(", ")}`))),
  );
}

function draw(state) {
  const today = state.days.at(-1);
  const nights = state.nights.filter((night) => night.verdict === "published").length;
  const note = today ? `day ${today.day} · ${state.visitors} users a day · ${nights} nightly update${nights === 1 ? "" : "s"}` : "The shop opens …";
  document.querySelector("#answers").replaceChildren(
    element("span", { class: "dot good" }), element("span", {}, note));
  document.querySelector("#service").href = state.service;
  if (Date.now() - moved > 2 * AFTER) {
    slider.value = state.debias;
    showStrength();
  }
  if (!today) return;
  drawTiles(state);
  for (const name of ["top_sales", "coverage", "gini", "liked"]) {
    drawPlot(document.querySelector(`#plot-${name}`), state, name);
  }
  drawSellers(state);
  drawNews(state);
}

function showStrength() {
  value.textContent = Number(slider.value).toFixed(2);
  document.documentElement.style.setProperty("--debias", slider.value);
}

async function ask() {
  try {
    const answer = await fetch("v1/playground");
    const text = await answer.text();
    if (!answer.ok) throw new Error(text);
    if (text !== drawn) draw(JSON.parse(text));
    drawn = text;
  } catch {
    document.querySelector("#answers").replaceChildren(
      element("span", { class: "dot bad" }), element("span", {}, "The shop is closed."));
  }
  setTimeout(ask, AFTER);
}

slider.addEventListener("input", () => {
  moved = Date.now();
  showStrength();
});
slider.addEventListener("change", async () => {
  moved = Date.now();
  const body = JSON.stringify({ debias: Number(slider.value) });
  const answer = await fetch("v1/playground/debias", { method: "PUT", body });
  document.querySelector("#heard").textContent = answer.ok
    ? `The debiasing strength is ${slider.value}.` : "The debiasing strength was not changed.";
});
ask();
