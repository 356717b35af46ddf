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

// A count as it is, any other figure with three digits.
export const figure = (value) =>
  String(Number.isInteger(value) ? value : Number(value.toPrecision(3)));

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

// An adapter; a sum of some by short names: "disambiguates + 0.35 of 3 others".
export function adapter(name) {
  const merged = /^([a-z][\w.]*)\((.*)\)$/.exec(name);
  const parts = (merged ? merged[2] : name).split("+").map((part) => part.split("*"));
  if (parts.length < 2 || parts.some((part) => part.length !== 2)) return name;
  const groups = new Map();
  for (const [who, weight] of parts) {
    groups.set(weight, [...groups.get(weight) ?? [], words(who.split("@")[0])]);
  }
  const sum = [...groups].sort(([one], [other]) => other - one).map(([weight, who], i) => {
    const some = who.length > 2 ? `${who.length} ${i ? "others" : "adapters"}` : who.join(" and ");
    return weight === "1" ? some : `${weight} of ${some}`;
  }).join(" + ");
  return merged ? `${merged[1]}: ${sum}` : sum;
}

export function select(label, options, chosen, changed) {
  const list = el("select", { onchange: (event) => changed(event.target.value) },
    options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  return el("label", {}, label, list);
}
