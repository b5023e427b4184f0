"use strict";
(() => {
  const data = JSON.parse(document.getElementById("figures").textContent);
  const all = (where, what) => Array.from(where.querySelectorAll(what));
  const element = (tag, name, text) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  document.documentElement.classList.add("js");

  // Tables: sorted by a column, and back in their own order.
  const number = (text) => {
    const match = text.replace(/,/g, "").replace(/−/g, "-").match(/^[<+]?-?\d+(\.\d+)?/);
    return match ? parseFloat(match[0].replace(/^[<+]/, "")) : NaN;
  };
  const value = (row, at) => {
    const cell = row.cells[at];
    if (!cell) return "";
    const text = cell.firstChild ? cell.firstChild.textContent.trim() : "";
    return cell.classList.contains("t") || at === 0 ? cell.textContent.trim() : text;
  };
  const sort = (table, at, order) => {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    const key = (row) => Number(row.dataset.at);
    rows.sort((first, second) => {
      if (order === "none") return key(first) - key(second);
      const [a, b] = [value(first, at), value(second, at)];
      const [x, y] = [number(a), number(b)];
      const words = Number.isNaN(x) && Number.isNaN(y);
      if (!words && Number.isNaN(x)) return 1; // what is missing comes last, whatever the order
      if (!words && Number.isNaN(y)) return -1;
      const difference = words ? a.localeCompare(b) : x - y;
      return (order === "ascending" ? difference : -difference) || key(first) - key(second);
    });
    rows.forEach((row) => body.append(row));
  };
  const sortable = (table) => {
    Array.from(table.tBodies[0].rows).forEach((row, at) => { row.dataset.at = at; });
    const heads = all(table, "thead th[scope=col]");
    heads.forEach((head, at) => {
      const button = element("button", "", head.textContent);
      button.type = "button";
      head.textContent = "";
      head.append(button);
      head.setAttribute("aria-sort", "none");
      const first = head.classList.contains("t") ? "ascending" : "descending";
      const second = first === "ascending" ? "descending" : "ascending";
      const next = { none: first, [first]: second, [second]: "none" };
      button.addEventListener("click", () => {
        const order = next[head.getAttribute("aria-sort")];
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", order);
        sort(table, at, order);
      });
    });
  };
  all(document, ".sheet").forEach(sortable);

  // What tables show: test, protocol, metric, and the models that a filter leaves.
  const tools = document.querySelector(".tools");
  const words = (by) => {
    const [test, protocol] = by.split(", ");
    return `${data.tests[test] || test}, ${data.protocols[protocol] || protocol}`;
  };
  const written = (metric) => (/^(ndcg|hr|mrr)@/.test(metric) ? metric.toUpperCase() : metric);
  const show = (cell, text, small, marks, best) => {
    cell.textContent = "";
    const inner = best ? element(best, "", text) : document.createTextNode(text);
    cell.append(inner);
    if (marks) cell.append(element("sup", "", marks));
    if (small) cell.append(element("small", "", small));
  };
  const fill = (panel, suite, by, metric) => {
    const metrics = data.suites[suite].tables[by];
    const used = [metric, "ndcg@10", ...Object.keys(metrics)].find((name) => metrics[name]);
    const { rows, gains } = metrics[used];
    const table = panel.querySelector(".sheet");
    Array.from(table.tBodies[0].rows).forEach((row) => {
      rows[Number(row.dataset.at)].forEach((values, at) => {
        const cell = row.cells[at + 1];
        if (!values) return show(cell, "–");
        const [mean, low, high] = values.slice(0, 3).map((value) => (value / 10000).toFixed(4));
        const [marks, seeds] = values.slice(3);
        const few = seeds === undefined ? "" : `, ${seeds} seed${seeds > 1 ? "s" : ""}`;
        const signs = (marks & 1 ? "*" : "") + (marks & 2 ? "†" : "") + (marks & 16 ? "‡" : "");
        const best = marks & 4 ? "b" : marks & 8 ? "u" : "";
        return show(cell, mean, `[${low}, ${high}]${few}`, signs, best);
      });
    });
    const foot = table.tFoot ? Array.from(table.tFoot.rows) : [];
    foot.forEach((row, line) => {
      Array.from(row.cells).slice(1).forEach((cell, at) => {
        const gain = (gains[line] || [])[at];
        if (gain) show(cell, gain[0], gain[1], gain[2]); else show(cell, "–");
      });
    });
    const caption = table.caption.firstChild;
    caption.textContent = caption.textContent.replace(/^[^.]*/, written(used));
    const sorted = table.querySelector("th:not([aria-sort=none])[aria-sort]");
    if (sorted) sort(table, sorted.cellIndex, sorted.getAttribute("aria-sort"));
    return used;
  };
  const choose = () => {
    const { test, protocol, metric } = tools.elements;
    const by = `${test.value}, ${protocol.value}`;
    all(document, ".panels").forEach((group) => {
      const panels = Array.from(group.children).filter((node) => node.matches(".panel"));
      const same = (name) => panels.find((panel) => panel.dataset.by === name);
      const near = panels.find((panel) => panel.dataset.by.startsWith(`${test.value}, `));
      const chosen = same(by) || near || panels[0];
      panels.forEach((panel) => {
        panel.classList.toggle("chosen", panel === chosen);
        if (panel === chosen) panel.open = true;
      });
      const { suite } = group.dataset;
      const used = suite ? fill(chosen, suite, chosen.dataset.by, metric.value) : metric.value;
      all(group, ":scope > .instead").forEach((node) => node.remove());
      const lacks = [];
      if (chosen.dataset.by !== by) lacks.push(words(by));
      if (used !== metric.value) lacks.push(written(metric.value));
      const sentence = `Not measured here: ${lacks.join("; ")}.`;
      if (suite && lacks.length) group.prepend(element("p", "instead", sentence));
    });
  };
  const filter = () => {
    const wanted = tools.elements.filter.value.trim().toLowerCase();
    let shown = 0;
    let every = 0;
    all(document, ".sheet tbody tr").forEach((row) => {
      const text = all(row, "th, .t").map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !text.includes(wanted);
      every += 1;
      shown += row.hidden ? 0 : 1;
    });
    tools.elements.count.value = wanted ? `${shown} of ${every} rows` : "";
  };
  tools.hidden = false;
  tools.addEventListener("submit", (event) => event.preventDefault());
  ["test", "protocol", "metric"].forEach((name) => tools.elements[name].addEventListener("change", choose));
  tools.elements.filter.addEventListener("input", filter);
  if (all(tools.elements.metric, "option").some((one) => one.value === "ndcg@10")) {
    tools.elements.metric.value = "ndcg@10";
  }
  choose();

  // Charts: the value of a point, under the pointer or by the arrow keys; one series among many.
  const tip = element("div", "tip");
  tip.hidden = true;
  const announced = element("div", "announced");
  announced.setAttribute("aria-live", "polite");
  document.body.append(tip, announced);
  const place = (chart, [x, y]) => {
    const [left, right, low, high] = chart.values;
    const [x0, x1, y0, y1] = chart.places;
    const across = chart.log ? Math.log(x / left) / Math.log(right / left) : (x - left) / (right - left);
    return [x0 + (x1 - x0) * across, y0 + (y1 - y0) * ((y - low) / (high - low))];
  };
  const short = (at) => {
    if (Number.isInteger(at)) return String(at);
    return Math.abs(at) < 100 ? at.toPrecision(4) : at.toFixed(0);
  };
  const sentenceOf = (chart, series, [x, y, name]) => {
    const at = chart.names[x] !== undefined ? chart.names[x] : short(x);
    const who = name ? `${series.name}, ${name}` : series.name;
    return `${who}. ${chart.axes[1]}: ${short(y)}. ${chart.axes[0]}: ${at}.`;
  };
  const faint = (svg, kept) => all(svg, "[data-series]").forEach((node) => {
    const name = data.charts[svg.dataset.chart].series[Number(node.dataset.series)].name;
    node.classList.toggle("faint", kept.size > 0 && !kept.has(name));
  });
  all(document, ".block").forEach((block) => {
    const kept = new Set();
    const charts = all(block, "svg[data-chart]");
    const redraw = (hover) => charts.forEach((svg) => faint(svg, hover ? new Set([hover]) : kept));
    all(block, ".legend li").forEach((item) => {
      const name = item.textContent;
      const button = element("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "false");
      button.append(...item.childNodes);
      item.append(button);
      button.addEventListener("click", () => {
        if (kept.has(name)) kept.delete(name); else kept.add(name);
        button.setAttribute("aria-pressed", String(kept.has(name)));
        redraw();
      });
      button.addEventListener("pointerenter", () => redraw(name));
      button.addEventListener("pointerleave", () => redraw());
    });
    charts.forEach((svg) => live(svg, redraw));
  });
  function live(svg, redraw) {
    const chart = data.charts[svg.dataset.chart];
    const points = [];
    chart.series.forEach((series, line) => {
      const own = series.spot ? [...series.points, series.spot] : series.points;
      own.forEach((point) => points.push({ line, series, point, at: place(chart, point) }));
    });
    const showPoint = (near, aloud) => {
      const text = sentenceOf(chart, near.series, near.point);
      const spot = new DOMPoint(...near.at).matrixTransform(svg.getScreenCTM());
      tip.textContent = text;
      tip.hidden = false;
      const { width, height } = tip.getBoundingClientRect();
      tip.style.left = `${Math.max(4, Math.min(spot.x + 10, window.innerWidth - width - 4))}px`;
      tip.style.top = `${Math.max(4, spot.y - height - 10)}px`;
      redraw(near.series.name);
      if (aloud) announced.textContent = text;
    };
    const leave = () => { tip.hidden = true; redraw(); };
    const nearest = (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const far = (one) => (one.at[0] - at.x) ** 2 + (one.at[1] - at.y) ** 2;
      const near = points.reduce((one, other) => (far(other) < far(one) ? other : one));
      if (far(near) < 18 ** 2) showPoint(near, false); else leave();
    };
    svg.addEventListener("pointermove", nearest);
    svg.addEventListener("pointerdown", nearest);
    svg.addEventListener("pointerleave", leave);
    svg.setAttribute("tabindex", "0");
    let at = 0;
    svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) showPoint(points[at], true); });
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowLeft: -1 };
      const lines = { ArrowDown: 1, ArrowUp: -1 };
      if (event.key in steps) at = (at + steps[event.key] + points.length) % points.length;
      else if (event.key in lines) {
        const count = chart.series.length;
        const line = (points[at].line + lines[event.key] + count) % count;
        at = points.findIndex((one) => one.line === line);
      } else if (event.key === "Escape") return leave();
      else return undefined;
      event.preventDefault();
      return showPoint(points[at], true);
    });
    const button = element("button", "", "Figures as a table");
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => {
      const there = svg.parentNode.querySelector(".wide");
      if (there) there.remove();
      else svg.parentNode.append(tabled(chart, points, svg.getAttribute("aria-label")));
      button.setAttribute("aria-expanded", String(!there));
    });
    svg.after(button);
  }
  function tabled(chart, points, label) {
    const frame = element("div", "wide");
    frame.tabIndex = 0;
    const table = element("table", "sheet");
    table.append(element("caption"));
    table.caption.append(element("span", "", label));
    const head = table.createTHead().insertRow();
    ["", ...chart.axes].forEach((name) => {
      const cell = element("th", "", name);
      cell.scope = "col";
      head.append(cell);
    });
    const body = table.createTBody();
    points.forEach(({ series, point }) => {
      const row = body.insertRow();
      const name = element("th", "", series.name);
      name.scope = "row";
      const x = chart.names[point[0]] !== undefined ? chart.names[point[0]] : short(point[0]);
      row.append(name, element("td", "", x), element("td", "", short(point[1])));
    });
    frame.append(table);
    return frame;
  }
})();
