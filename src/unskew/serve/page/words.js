// What the items are called here: a film, a product, a song. The service says it (`unskew serve --noun`).

import { count } from "./dom.js";

export const noun = { one: "item", many: "items" };

const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);

export const items = (number) => `${count(number)} ${number === 1 ? noun.one : noun.many}`;
export const Items = () => capital(noun.many);

const article = (word) => (/^[aeiou]/i.test(word) ? "an" : "a");

// Take the words of the service, and put them into the text that stands in the page already.
export function call({ one, many }) {
  Object.assign(noun, { one, many });
  const words = { one, many, a: `${article(one)} ${one}`, Many: capital(many) };
  for (const node of document.querySelectorAll("[data-noun]")) node.textContent = words[node.dataset.noun];
}
