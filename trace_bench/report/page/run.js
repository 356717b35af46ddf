// One run: its result, how it got there, what it cost.
import { chart, colour, dash, dots, pattern, symbol } from "report/charts";
import { adapter, el, facts, figure, link, number, p, section, shown, signed, span, words } from "report/dom";
import { about, notes } from "report/overview";
import { table } from "report/table";

export function run(index, at, data) {
  const s = data.summary;
  return [
    el("h1", {}, index.runs[at].name),
    index.runs.length === 1 ? notes(index) : null,
    headline(s),
    el("p", {}, link({ view: "tasks", left: `${at}/base`, right: `${at}/final` },
      "Every held-out task, base and final side by side")),
    agents(s),
    curves(s, data.training),
    budget(s),
    data.capabilities ? capabilities(data.capabilities) : null,
    s.routing ? routing(s, data.tasks) : null,
    health(s),
    about(s, data.settings),
  ];
}

function headline(s) {
  const suite = s.suite_name || `${s.env}${s.suite ? ` (${s.suite})` : ""}`;
  const what = `${s.method} on ${suite}, model ${s.model}, ` +
    `budget ${s.budget} rollouts, seed ${s.seed}.`;
  if (!s.score) return el("p", { class: "headline" }, what, " No held-out task has a score.");
  const d = s.difference;
  return el("p", { class: "headline" }, what, ` It solves ${number(s.score.success)} ` +
    `${span(...s.score.interval)} of ${s.score.n} held-out tasks (split ${s.split}); the base ` +
    `agent ${number(s.base_score?.success)}. `,
  d ? `Difference ${signed(d.value)} ${span(d.low, d.high, signed)}, ${p(d.p_value)}, on ${d.n} ` +
    `tasks, ${d.discordant} of them with different outcomes.` : "");
}

function agents(s) {
  return section("Agents on the held-out tasks",
    table("Success and similarity: means over tasks, 95 % intervals over tasks. The difference " +
      "is paired with the base agent.", [
      { name: "agent", text: true, value: (r) => r.name },
      { name: "success", value: (r) => r.success, cell: (r) => number(r.success) },
      { name: "interval", value: (r) => r.low, cell: (r) => span(r.low, r.high) },
      { name: "similarity", value: (r) => r.similarity, cell: (r) => number(r.similarity) },
      { name: "tasks", value: (r) => r.n },
      { name: "lost", value: (r) => r.failures },
      { name: "difference", value: (r) => r.difference?.value ?? 0, cell: (r) => r.difference ?
        `${signed(r.difference.value)} ${span(r.difference.low, r.difference.high, signed)}` : "" },
    ], s.table),
    dots("Success with 95 % intervals. Floors and ceiling bound what an agent can reach.",
      s.table.map((r) => [r.name, r.success, r.low, r.high]), "success"));
}

function curves(s, training) {
  const adapters = [...new Set(training.map((r) => String(r.adapter).split("@")[0]))];
  const series = adapters.map((name, i) => {
    const own = training.filter((r) => String(r.adapter).split("@")[0] === name);
    return { type: "scatter", mode: "lines+markers", name: words(name),
      x: own.map((_, j) => j + 1), y: own.map((r) => r.reward),
      line: { color: colour(i), dash: dash(i) }, marker: { symbol: symbol(i), size: 7 } };
  });
  const most = Math.max(0, ...series.map((line) => line.x.length));
  const dev = (s.curve ?? []).filter((c) => c.success !== undefined && c.interval);
  const points = dev.length ? [{ type: "scatter", mode: "lines+markers", name: "dev split",
    x: dev.map((c) => c.rollouts), y: dev.map((c) => c.success), line: { color: colour(0) },
    error_y: { type: "data", symmetric: false, array: dev.map((c) => c.interval[1] - c.success),
      arrayminus: dev.map((c) => c.success - c.interval[0]) } }] : [];
  if (!series.length && !points.length) return null;
  return section("Curves",
    series.length ? chart("Mean reward of the rollouts of each training iteration, by adapter.",
      series, { xaxis: { title: { text: "iteration" }, tick0: 0,
        dtick: Math.max(1, Math.ceil(most / 10)), rangemode: "tozero" },
        yaxis: { title: { text: "mean reward" }, rangemode: "tozero" }, showlegend: true }) : null,
    points.length ? chart("Success on the development split over charged rollouts, with 95 % " +
      `intervals.${s.curve_caveat ? ` Note: ${s.curve_caveat}.` : ""}`, points,
      { xaxis: { title: { text: "charged rollouts" } },
        yaxis: { title: { text: "success" }, range: [0, 1] } }) : null);
}

function budget(s) {
  const spent = Object.entries(s.rollouts).filter(([name]) => name !== "evaluation");
  const series = spent.map(([name, count], i) => ({ type: "bar", orientation: "h", name,
    y: ["rollouts"], x: [count], text: [`${name} ${count}`], textposition: "inside",
    insidetextanchor: "middle",
    marker: { color: colour(i), pattern: { shape: pattern(i), fillmode: "overlay",
      fgcolor: "rgba(255,255,255,.5)" } } }));
  return section("What the budget went to",
    series.length ? chart(`Rollouts by purpose, accounting ${s.accounting}: ` +
      spent.map(([name, count]) => `${name} ${count}`).join(", ") + ".", series,
      { barmode: "stack", showlegend: false, yaxis: { visible: false },
        xaxis: { title: { text: "rollouts" } } }, 130) :
      el("p", {}, "This method ran no rollout of its own."),
    facts([...(s.unspent ? [["unspent", `${s.unspent} (${s.why_unspent})`]] : []),
      ["evaluation, not charged", `${s.rollouts.evaluation ?? 0} episodes`],
      ...Object.entries(s.wall_s ?? {}).filter(([name]) => !name.includes("/"))
        .map(([name, seconds]) => [`time, ${name}`, `${seconds} s`])]));
}

function capabilities(c) {
  const thresholds = Object.entries(c.thresholds ?? {}).map(([k, v]) => `${words(k)} ${v}`);
  const training = new Map((c.training ?? []).map((t) => [t.name, t]));
  const calibrated = new Map((c.calibration ?? []).map((t) => [t.name, t]));
  const count = (name, label) => {
    const own = c.labels[name] ?? {};
    return `${own[`${label} failed`] ?? 0} / ${own[`${label} passed`] ?? 0}`;
  };
  return section("Capabilities",
    c.analysis ? el("p", {}, `The analysis ran ${c.analysis.rollouts} rollouts: ` +
      `${c.analysis.passed} passed, ${c.analysis.failed} failed, ${c.analysis.lost} lost. ` +
      `Thresholds: ${thresholds.join(", ")}.`) : null,
    table("Candidates. Labels are counted in failed / passed trajectories; votes are labelling " +
      "runs in which the candidate met the thresholds.", [
      { name: "capability", text: true, value: (r) => r.name, cell: (r) =>
        el("span", { title: r.description }, words(r.name)) },
      { name: "selected", value: (r) => (r.selected ? "yes" : "no") },
      { name: "votes", value: (r) => r.votes, cell: (r) => `${r.votes} of ${r.of}` },
      { name: "coverage", value: (r) => r.coverage, cell: (r) => number(r.coverage) },
      { name: "contrast", value: (r) => r.gap, cell: (r) => number(r.gap) },
      { name: "lacking", value: (r) => count(r.name, "LACKING") },
      { name: "present", value: (r) => count(r.name, "PRESENT") },
      { name: "calibration", text: true, value: (r) => calibrated.get(r.name)?.outcome ?? "" },
      { name: "rollouts of training", value: (r) => training.get(r.name)?.spent ?? 0 },
      { name: "why not", text: true, value: (r) => r.reason ?? "" },
    ], c.candidates),
    c.calibration?.length ? rounds(c.calibration) : null);
}

const rounds = (calibration) => table("Calibration: rollouts of the base agent in each synthetic " +
  "environment, and which of the wanted bands they missed.", [
  { name: "capability", text: true, value: (r) => words(r.name) },
  { name: "round", value: (r) => r.round },
  { name: "rollouts", value: (r) => r.rollouts },
  { name: "reward", value: (r) => r.mean_reward, cell: (r) => number(r.mean_reward) },
  { name: "success", value: (r) => r.success, cell: (r) => number(r.success) },
  { name: "informative groups", value: (r) => r.informative, cell: (r) => number(r.informative) },
  { name: "outside", text: true, value: (r) => (r.outside ?? []).join("; ") },
], calibration.flatMap((c) => c.rounds.map((r, i) => ({ ...r, name: c.name, round: i + 1 }))));

function routing(s, tasks) {
  const r = s.routing;
  const final = tasks.agents.final, counts = new Map();
  final?.adapters.forEach((names, i) => {
    const name = names.join(", ");
    const own = counts.get(name) ?? { name, tasks: 0, scored: 0, solved: 0 };
    own.tasks += 1;
    own.scored += final.success[i] !== null;
    own.solved += final.success[i] ?? 0;
    counts.set(name, own);
  });
  return section("Routing",
    el("p", {}, `The router gives ${number(s.score?.success)}, the oracle that knows each task's ` +
      `best adapter ${number(r.oracle_score.success)}, the best single adapter ` +
      `(${r.single}) ${number(r.single_score.success)}. The router does as well as the oracle on ` +
      `${number(r.agreement)} of all tasks` + (r.decisive ? ` and on ${number(r.agreement_decisive)}` +
        ` of the ${r.decisive} tasks on which the choice matters.` : "; on none the choice matters.")),
    table("How many held-out tasks were run with which adapter.", [
      { name: "adapter", text: true, value: (c) => c.name, cell: (c) =>
        el("span", { title: c.name }, adapter(c.name)) },
      { name: "tasks", value: (c) => c.tasks },
      { name: "success there", value: (c) => c.solved / c.scored, cell: (c) =>
        number(c.scored ? c.solved / c.scored : null) },
    ], [...counts.values()]));
}

const MEANING = {
  apart: "the mean difference of a token's log-probability between sampler and trainer, the " +
    "largest of any iteration",
  constant: "groups of rollouts with one reward, which teach nothing",
};

function health(s) {
  if (!s.health) return null;
  const plain = (v) => typeof v === "number" ? figure(v) : shown(v);
  const rows = Object.entries(s.health).map(([name, value]) =>
    [words(name), value && typeof value === "object" ? Object.entries(value)
      .map(([k, v]) => `${words(k)} ${plain(v)}`).join(", ") || "none" : plain(value)]);
  const names = new Set([...Object.keys(s.health), ...Object.values(s.health)
    .flatMap((v) => Object.keys(v && typeof v === "object" ? v : {}))]);
  const told = Object.entries(MEANING).filter(([name]) => names.has(name));
  return section("Health of the run", facts(rows), told.map(([name, text]) =>
    el("p", { class: "note" }, `${words(name)}: ${text}.`)));
}
