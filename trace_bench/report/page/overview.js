// The runs of the report in the rows of the tables, and the differences between these.
import { dots } from "report/charts";
import { curves } from "report/curves";
import { load } from "report/data";
import { el, facts, link, number, p, section, select, shown, signed, span } from "report/dom";
import { table } from "report/table";

export function overview(index) {
  const { runs, rows } = index;
  return [
    el("h1", {}, `${runs.length} runs`),
    notes(index),
    table("Held-out success of each method's agents, and its difference to their base agents, " +
      "means over tasks and seeds with 95 % intervals over both.", [
      { name: "method", text: true, value: (r) => r.name, cell: (r) => seeds(r, runs) },
      { name: "success", value: (r) => r.success?.value, cell: (r) => number(r.success?.value) },
      { name: "interval", value: (r) => r.success?.low, cell: (r) =>
        r.success ? span(r.success.low, r.success.high) : "" },
      { name: "difference", value: (r) => r.difference?.value, cell: (r) => r.difference ?
        `${signed(r.difference.value)} ${span(r.difference.low, r.difference.high, signed)}` : "" },
      { name: "base", value: (r) => r.base, cell: (r) => number(r.base) },
      { name: "suite", value: (r) => r.suite },
      { name: "model", value: (r) => r.model },
    ], rows),
    dots("Success over held-out tasks: means with 95 % intervals over tasks and seeds.",
      rows.filter((r) => r.success)
        .map((r) => [r.name, r.success.value, r.success.low, r.success.high]), "success"),
    curves(index),
    index.pairs.length ? differences(index) : null,
  ];
}

// A row's one run, or its seeds, which a click opens.
function seeds(row, runs) {
  const to = (i, text) => link({ view: "run", run: i }, text);
  return row.runs.length === 1 ? to(row.runs[0], row.name) : el("details", {},
    el("summary", {}, `${row.name}, ${row.runs.length} seeds`),
    el("ul", {}, row.runs.map((i) => el("li", {}, to(i, `seed ${runs[i].seed}`),
      `: ${number(runs[i].success)}`))));
}

export const notes = (index) => [
  ...index.remarks.map((text) => el("p", { class: "note" }, text)),
  index.skipped.length ? el("details", {}, el("summary", {},
    `${index.skipped.length} folders were skipped`),
  el("ul", {}, index.skipped.map((text) => el("li", {}, text)))) : null,
];

function differences(index) {
  const names = index.rows.map((r) => r.name);
  const found = index.pairs.filter((q) => q.gap);
  return section("Differences between methods",
    el("p", {}, "Task by task: the success of the first less that of the second, on the tasks " +
      "that have a score in both."),
    table("Paired differences with 95 % intervals over tasks and seeds; p Holm-corrected over " +
      `${found.length} comparison${found.length === 1 ? "" : "s"}.`, [
      { name: "first", text: true, value: (q) => names[q.left] },
      { name: "second", text: true, value: (q) => names[q.right] },
      { name: "difference", value: (q) => q.gap?.value ?? -9, cell: (q) =>
        q.gap ? signed(q.gap.value) : q.why },
      { name: "interval", value: (q) => q.gap?.low ?? -9, cell: (q) =>
        q.gap ? span(q.gap.low, q.gap.high, signed) : "" },
      { name: "p", value: (q) => q.gap?.p_value ?? 2, cell: (q) =>
        q.gap ? p(q.gap.p_value) : "" },
      { name: "tasks", value: (q) => q.n ?? 0, cell: (q) => q.gap ?
        `${q.n}${q.dropped ? `, ${q.dropped} dropped` : ""}` : "" },
      { name: "", value: () => "", cell: (q) => q.gap ? link({ view: "tasks",
        left: `${index.rows[q.left].runs[0]}/final`,
        right: `${index.rows[q.right].runs[0]}/final` }, "by task") : "" },
    ], index.pairs),
    found.length > 1 ? dots("Differences with 95 % intervals; zero is no difference.",
      found.map((q) => [`${names[q.left]} \u2212 ${names[q.right]}`, q.gap.value, q.gap.low,
        q.gap.high]), "difference in success", true) : null,
    settings(index, names));
}

// All that decides a run's result, with what its suite says of itself.
const settled = ({ settings: own, summary }) => ({ ...own, ...Object.fromEntries(
  Object.entries(summary.suite_data).map(([key, value]) => [`the suite's ${key}`, value])) });

function settings(index, names) {
  const place = el("div");
  const show = async (i) => {
    const { left, right } = index.pairs[i];
    const [one, other] = await Promise.all([left, right].map(async (row) =>
      settled(await load(`run-${index.rows[row].runs[0]}`))));
    const differ = Object.keys({ ...one, ...other }).map((key) => [key, shown(one[key]),
      shown(other[key])]).filter(([, a, b]) => a !== b);
    place.replaceChildren(differ.length ? table("Settings with different values.", [
      { name: "setting", text: true, value: (d) => d[0] },
      { name: names[left], value: (d) => d[1], text: true },
      { name: names[right], value: (d) => d[2], text: true },
    ], differ) : el("p", {}, "Their settings are the same."));
  };
  const options = index.pairs.map((q, i) => [String(i), `${names[q.left]} and ${names[q.right]}`]);
  show(0);
  return [el("h3", {}, "What the settings differ in"), el("div", { class: "controls" },
    select("Pair of methods", options, "0", show)), place];
}

export const about = (summary, settings) => section("Settings and versions",
  el("details", {}, el("summary", {}, "All settings that decide the result"),
    facts(Object.entries(settings))),
  el("details", {}, el("summary", {}, "Versions"), facts([
    ...Object.entries(summary.versions ?? {}), ...Object.entries(summary.machine ?? {}),
    ["commit", summary.git?.commit ?? "unknown"],
    ["code", summary.code.join(", ")],
    ["code changed since the commit", summary.git ? shown(summary.git.changed) : "unknown"],
    ["fingerprint", summary.fingerprint]])));
