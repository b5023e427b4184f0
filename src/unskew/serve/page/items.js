// The details of items: each is requested once, a few at a time.

import { ask, text } from "./api.js";

const AT_ONCE = 4;
const found = new Map(); // by id: a document
const waiting = new Map(); // by id: the promises of pending requests
let under = 0;

export const remembered = (id) => found.get(id);

export const LISTED = 24; // items of a search without words

// The items whose titles hold some words; the most popular ones without words.
export async function search(words, limit, signal) {
  const answer = await ask(`v1/items?query=${text(words)}&limit=${limit}`, { signal });
  const items = answer.items ?? answer;
  for (const item of items) if ("features" in item) found.set(item.item_id, item);
  return items.slice(0, limit);
}

export function details(id) {
  if (found.has(id)) return Promise.resolve(found.get(id));
  const pending = waiting.get(id);
  if (pending) return pending.promise;
  const wish = {};
  wish.promise = new Promise((resolve) => { wish.resolve = resolve; });
  waiting.set(id, wish);
  next();
  return wish.promise;
}

async function next() {
  if (under >= AT_ONCE) return;
  const entry = [...waiting].find(([, wish]) => !wish.asked);
  if (!entry) return;
  const [id, wish] = entry;
  wish.asked = true;
  under += 1;
  let answer = null;
  try {
    answer = await ask(`v1/items/${text(id)}`);
    found.set(id, answer);
  } catch { /* the card stays without a year, and the next card of the item asks again */ }
  under -= 1;
  waiting.delete(id);
  wish.resolve(answer);
  next();
}
