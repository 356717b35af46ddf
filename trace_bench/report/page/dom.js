// Elements from plain values. Text is only ever set as text, so nothing in the data is HTML.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined));
  return made;
}

export const link = (state, text, attributes = {}) =>
  el("a", { href: "#" + new URLSearchParams(state), ...attributes }, text);

export const section = (title, ...content) => el("section", {}, el("h2", {}, title), ...content);

export const facts = (pairs) =>
  el("dl", {}, pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, shown(value))]));

// Three decimals; a share keeps its sign only where a sign means something.
export const number = (value, digits = 3) =>
  value === null || value === undefined ? "no score" : Number(value).toFixed(digits);

export const signed = (value) => (value > 0 ? "+" : value < 0 ? "\u2212" : "") +
  Math.abs(value).toFixed(3);

export const span = (low, high, format = number) => `[${format(low)}, ${format(high)}]`;

export const p = (value) => (value < 0.0001 ? "p < .0001" : "p = " + value.toFixed(4));

export function shown(value) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "object" && !Object.keys(value).length) return "none";
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

export const words = (name) => String(name).replaceAll("_", " ");

export function select(label, options, chosen, changed) {
  const list = el("select", { onchange: (event) => changed(event.target.value) },
    options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  return el("label", {}, label, list);
}
