// The box to type a name into: a combobox with a list, by mouse and by keys.

import { by, debounced, made, say, titled } from "./dom.js";
import { search } from "./items.js";
import { items as named, noun } from "./words.js";

const OPTIONS = 8;

export function searchBox(choose) {
  const [input, drop, head, list] = ["search", "drop", "drop-head", "options"].map(by);
  let items = [];
  let active = -1;
  let asked = null;
  let answered = null; // the words that the options belong to
  let drawn = null; // the same, also after the list was closed

  const open = () => !drop.hidden;
  const close = () => {
    soon.cancel();
    asked?.abort();
    drop.hidden = true;
    active = -1;
    answered = null;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const show = (words) => {
    head.textContent = words;
    drop.hidden = false;
    input.setAttribute("aria-expanded", String(items.length > 0));
  };
  const mark = (at) => {
    active = at;
    [...list.children].forEach((node, place) => {
      node.setAttribute("aria-selected", String(place === at));
      if (place === at) node.scrollIntoView({ block: "nearest" });
    });
    if (at < 0) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", `option-${at}`);
  };
  const take = (at) => {
    const item = items[at];
    if (!item) return;
    close();
    input.value = "";
    choose(item);
    input.focus();
    close(); // which the focus may have opened again
  };

  const draw = (words) => {
    list.replaceChildren(...items.map((item, at) => {
      const { title, year, genres } = titled(item);
      const about = [year, genres.slice(0, 3).join(", ")].filter(Boolean).join(" · ");
      const node = made("li", "", made("span", "option-title", ...marked(title, words)),
        made("span", "option-about", about));
      node.id = `option-${at}`;
      node.setAttribute("role", "option");
      node.setAttribute("aria-selected", "false");
      node.addEventListener("pointerdown", (event) => event.preventDefault()); // the focus stays
      node.addEventListener("click", () => take(at));
      return node;
    }));
    mark(-1);
  };

  async function refresh() {
    const words = input.value.trim();
    asked?.abort();
    asked = new AbortController();
    const { signal } = asked;
    if (!open()) show("Looking …");
    try {
      items = await search(words, OPTIONS, signal);
      if (signal.aborted) return;
      answered = drawn = words;
      draw(words);
      if (items.length === 0) show(`No ${noun.one} has “${words}” in its name. A part of it is enough.`);
      else show(words ? "Best matches first" : "The most popular ones");
      say(items.length ? `${named(items.length)}; arrow keys choose.` : head.textContent);
    } catch (error) {
      if (error.name === "AbortError") return;
      items = [];
      drawn = null;
      draw("");
      show(`${error.title ?? "The search failed"}. Type again to try again.`);
      say(head.textContent);
    }
  }

  // The options are still those of these words, so arrow keys need not wait for an answer.
  const reopen = () => {
    const words = input.value.trim();
    if (drawn !== words || items.length === 0) return refresh();
    answered = words;
    mark(-1);
    return show(words ? "Best matches first" : "The most popular ones");
  };

  const soon = debounced(refresh, 140);
  const move = (step) => {
    if (!open()) reopen();
    else if (items.length) mark(active < 0 && step < 0 ? items.length - 1
      : (active + step + items.length) % items.length);
  };
  async function enter() {
    // Enter after fast typing means the words as they are now.
    soon.cancel();
    const words = input.value.trim();
    if (active < 0 && answered !== words) await refresh();
    if (active < 0 && answered === words && words) take(0);
    else take(active);
  }
  const keys = {
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    Enter: enter,
    Escape: () => { if (open()) close(); else input.value = ""; },
    Tab: null,
  };
  input.addEventListener("keydown", (event) => {
    if (event.isComposing || !(event.key in keys)) return;
    if (event.key === "Tab") {
      close();
      return;
    }
    event.preventDefault();
    keys[event.key]();
  });
  input.addEventListener("input", () => {
    mark(-1);
    soon();
  });
  input.addEventListener("click", () => { if (!open()) refresh(); });
  input.addEventListener("blur", () => window.setTimeout(() => {
    if (document.activeElement !== input) close();
  }, 0));
  return { focus: () => { input.focus(); close(); } };
}

// The title with the typed words in bold.
function marked(title, words) {
  const at = words ? title.toLowerCase().indexOf(words.toLowerCase()) : -1;
  if (at < 0) return [title];
  const end = at + words.length;
  return [title.slice(0, at), made("b", "", title.slice(at, end)), title.slice(end)];
}
