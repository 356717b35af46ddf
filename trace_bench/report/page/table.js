// A table whose columns can be sorted.
import { el } from "report/dom";

// columns: [{name, value: row => what to sort by, cell: row => what to show, text: left-aligned}].
// `most` rows are shown at first; a button shows the rest.
export function table(caption, columns, rows, { most = 200, sort = null } = {}) {
  const body = el("tbody");
  const more = el("button", { class: "plain", type: "button", onclick: () => fill(Infinity) });
  let by = sort, down = false;

  function sorted() {
    if (by === null) return rows;
    const value = columns[by].value;
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b
      : String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true }));
    return [...rows].sort((a, b) => (down ? -1 : 1) * order(value(a), value(b)));
  }

  function fill(count) {
    body.replaceChildren(...sorted().slice(0, count).map((row) => el("tr", {},
      columns.map((c) => el("td", { class: c.text ? "text" : null },
        c.cell ? c.cell(row) : String(c.value(row)))))));
    more.hidden = rows.length <= count;
    more.textContent = `Show all ${rows.length} rows`;
  }

  const heads = columns.map((c, i) => el("th", { scope: "col", class: c.text ? "text" : null },
    el("button", { type: "button", onclick: () => {
      down = by === i && !down;
      by = i;
      heads.forEach((h, j) => (j === i ? h.setAttribute("aria-sort", down ? "descending"
        : "ascending") : h.removeAttribute("aria-sort")));
      fill(most);
    } }, c.name)));
  fill(most);
  return el("div", {}, el("div", { class: "wide" },
    el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, heads)), body)), more);
}
