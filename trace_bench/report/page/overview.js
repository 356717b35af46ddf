// All runs of the report, and the differences between them.
import { dots } from "report/charts";
import { curves } from "report/curves";
import { el, facts, link, number, p, section, select, shown, signed, span } from "report/dom";
import { table } from "report/table";

export function overview(index) {
  const { runs } = index;
  const rows = runs.map((run, i) => ({ ...run, i }));
  const scored = rows.filter((r) => r.score !== null);
  return [
    el("h1", {}, `${runs.length} runs`),
    notes(index),
    table("Held-out success of each run's agent and of its base agent, with 95 % intervals.", [
      { name: "run", text: true, value: (r) => r.name, cell: (r) =>
        link({ view: "run", run: r.i }, r.name) },
      { name: "success", value: (r) => r.score?.success, cell: (r) => number(r.score?.success) },
      { name: "interval", value: (r) => r.score?.interval[0], cell: (r) =>
        r.score ? span(...r.score.interval) : "" },
      { name: "difference", value: (r) => r.difference?.value, cell: (r) =>
        r.difference ? signed(r.difference.value) : "" },
      { name: "base", value: (r) => r.base_score?.success, cell: (r) =>
        number(r.base_score?.success) },
      { name: "suite", value: (r) =>
        r.suite_name || [r.env, r.suite].filter(Boolean).join(" ") },
      { name: "model", value: (r) => r.model },
    ], rows),
    dots("Success over held-out tasks: means with 95 % intervals over tasks.",
      scored.map((r) => [r.name, r.score.success, ...r.score.interval]), "success"),
    curves(index),
    index.pairs.length ? differences(index) : null,
  ];
}

export const notes = (index) => [
  ...index.remarks.map((text) => el("p", { class: "note" }, text)),
  index.skipped.length ? el("details", {}, el("summary", {},
    `${index.skipped.length} folders were skipped`),
  el("ul", {}, index.skipped.map((text) => el("li", {}, text)))) : null,
];

function differences(index) {
  const names = index.runs.map((r) => r.name);
  const found = index.pairs.filter((q) => q.found);
  return section("Differences between runs",
    el("p", {}, "Task by task: the second run's success minus the first one's, on the tasks that " +
      "have a score in both."),
    table("Paired differences; intervals and p-values as in the project's tables.", [
      { name: "first", text: true, value: (q) => names[q.left] },
      { name: "second", text: true, value: (q) => names[q.right] },
      { name: "difference", value: (q) => q.found?.value ?? -9, cell: (q) =>
        q.found ? signed(q.found.value) : q.why },
      { name: "interval", value: (q) => q.found?.low ?? -9, cell: (q) =>
        q.found ? span(q.found.low, q.found.high, signed) : "" },
      { name: "p", value: (q) => q.found?.p_value ?? 2, cell: (q) =>
        q.found ? p(q.found.p_value) : "" },
      { name: "tasks", value: (q) => q.found?.n ?? 0, cell: (q) => q.found ?
        `${q.found.n}${q.found.dropped ? `, ${q.found.dropped} dropped` : ""}` : "" },
      { name: "", value: () => "", cell: (q) => q.found ? link({ view: "tasks",
        left: `${q.left}/final`, right: `${q.right}/final` }, "by task") : "" },
    ], index.pairs),
    found.length > 1 ? dots("Differences with 95 % intervals; zero is no difference.",
      found.map((q) => [`${names[q.right]} \u2212 ${names[q.left]}`, q.found.value, q.found.low,
        q.found.high]), "difference in success", true) : null,
    settings(index, names));
}

function settings(index, names) {
  const place = el("div");
  const show = (i) => {
    const pair = index.pairs[i];
    place.replaceChildren(pair.differ.length ? table(
      "Settings with different values.", [
        { name: "setting", text: true, value: (d) => d[0] },
        { name: names[pair.left], value: (d) => shown(d[1]), text: true },
        { name: names[pair.right], value: (d) => shown(d[2]), text: true },
      ], pair.differ) : el("p", {}, "Their settings are the same."));
  };
  const options = index.pairs.map((q, i) => [String(i), `${names[q.left]} and ${names[q.right]}`]);
  show(0);
  return [el("h3", {}, "What the settings differ in"), el("div", { class: "controls" },
    select("Pair of runs", options, "0", show)), place];
}

export const about = (summary, settings) => section("Settings and versions",
  el("details", {}, el("summary", {}, "All settings that decide the result"),
    facts(Object.entries(settings))),
  el("details", {}, el("summary", {}, "Versions"), facts([
    ...Object.entries(summary.versions ?? {}), ...Object.entries(summary.machine ?? {}),
    ["commit", summary.git?.commit ?? "unknown"],
    ["code changed since the commit", summary.git ? shown(summary.git.changed) : "unknown"],
    ["fingerprint", summary.fingerprint]])));
