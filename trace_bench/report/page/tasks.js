// Every held-out task with two agents side by side.
import { load } from "report/data";
import { adapter, el, link, number, select, words } from "report/dom";
import { table } from "report/table";

const STATUS = ["gained", "lost", "same", "dropped"];
const MARK = { gained: "\u25b2 gained", lost: "\u25bc lost", same: "= same",
  dropped: "\u2013 dropped" };

// "run/agent" as [run, agent].
export const side = (text) => {
  const at = text.indexOf("/");
  return [Number(text.slice(0, at)), text.slice(at + 1)];
};

// Every agent of every run as an option of a list: ["0/base", "run, base"].
export async function choices(index) {
  const all = await Promise.all(index.runs.map((_, i) => load(`run-${i}`)));
  return all.flatMap((data, i) => Object.keys(data.tasks.agents).map((agent) => [`${i}/${agent}`,
    index.runs.length > 1 ? `${index.runs[i].name}: ${words(agent)}` : words(agent)]));
}

// Whether the environments of two sides have the same code; else one task id may stand for two
// tasks.
function samePlace(index, left, right) {
  const code = (text) => Object.entries(index.runs[side(text)[0]].code).sort().join();
  return code(left) === code(right);
}

// The tasks that both agents ran, with their outcomes and the change from left to right; none
// where the environments have other code.
export async function compared(index, left, right) {
  if (!samePlace(index, left, right)) return [];
  const [[l, a], [r, b]] = [side(left), side(right)];
  const [one, other] = await Promise.all([load(`run-${l}`), load(`run-${r}`)]);
  const place = new Map(other.tasks.ids.map((id, i) => [id, i]));
  const none = { success: [], similarity: [], adapters: [], errors: [] }; // an episode of training
  const was = one.tasks.agents[a] ?? none, is = other.tasks.agents[b] ?? none;
  return one.tasks.ids.map((id, i) => [id, i, place.get(id)]).filter(([, , j]) => j !== undefined)
    .map(([id, i, j]) => ({ id, tags: one.tasks.tags[i], left: was.success[i],
      right: is.success[j], leftSimilarity: was.similarity[i], rightSimilarity: is.similarity[j],
      adapter: (is.adapters[j] ?? []).join(", "),
      error: [...(was.errors[i] ?? []), ...(is.errors[j] ?? [])].join("; "),
      status: status(was.success[i], is.success[j]) }));
}

function status(left, right) {
  if (left === null || right === null || left === undefined || right === undefined) {
    return "dropped";
  }
  return right > left ? "gained" : right < left ? "lost" : "same";
}

// What the filters leave, in the order of task ids; the conversation view steps through it.
export const passing = (rows, state) => rows.filter((r) =>
  (!state.status || r.status === state.status) &&
  (!state.tag || r.tags.includes(state.tag)) &&
  (!state.count || r.tags.length === Number(state.count)) &&
  (!state.find || `${r.id} ${r.adapter} ${r.tags.join(" ")} ${r.error}`.toLowerCase()
    .includes(state.find.toLowerCase())));

export async function tasks(index, state, go) {
  const left = state.left ?? "0/base", right = state.right ?? "0/final";
  const [options, rows] = await Promise.all([choices(index), compared(index, left, right)]);
  const tags = [...new Set(rows.flatMap((r) => r.tags))].sort();
  const sizes = [...new Set(rows.map((r) => r.tags.length))].sort((x, y) => x - y);
  const place = el("div");
  const change = (more) => go({ ...state, view: "tasks", left, right, ...more });

  function show(find) {
    const kept = passing(rows, { ...state, find });
    place.replaceChildren(list(kept, { ...state, view: "task", left, right, find }));
  }

  const search = el("input", { type: "search", id: "search", value: state.find ?? "",
    oninput: (event) => show(event.target.value),
    onchange: (event) => change({ find: event.target.value }) });
  show(state.find ?? "");
  return [
    el("h1", {}, "Held-out tasks"),
    samePlace(index, left, right) ? null : el("p", { class: "note" }, "The environments of these " +
      "two runs have other code, so one task id may stand for two tasks: they are not paired."),
    el("div", { class: "controls" },
      select("Left", options, left, (value) => change({ left: value })),
      select("Right", options, right, (value) => change({ right: value })),
      el("label", {}, "Search (press /)", search),
      tags.length ? select("Needs", [["", "anything"], ...tags.map((t) => [t, words(t)])],
        state.tag ?? "", (value) => change({ tag: value })) : null,
      tags.length ? select("Number of needs", [["", "any"], ...sizes.map((n) => [String(n),
        String(n)])], state.count ?? "", (value) => change({ count: value })) : null),
    el("div", { class: "controls", role: "group", "aria-label": "Change from left to right" },
      ["", ...STATUS].map((s) => el("button", { class: "plain", type: "button",
        "aria-pressed": String((state.status ?? "") === s), onclick: () => change({ status: s }) },
      `${s ? MARK[s] : "all"}: ${s ? rows.filter((r) => r.status === s).length : rows.length}`))),
    place,
  ];
}

function list(rows, state) {
  const outcome = (success, similarity) => success === null || success === undefined ? "no score"
    : `${success === 1 ? "success" : success === 0 ? "failure" : number(success, 2)} ` +
      `(${number(similarity, 2)})`;
  return table(`${rows.length} tasks. Outcome with similarity in brackets; choose a task to read ` +
    "both conversations.", [
    { name: "task", text: true, value: (r) => r.id, cell: (r) => link({ ...clean(state),
      task: r.id }, r.id) },
    { name: "change", text: true, value: (r) => STATUS.indexOf(r.status), cell: (r) =>
      el("span", { class: r.status }, MARK[r.status]) },
    { name: "left", value: (r) => r.leftSimilarity ?? -1, cell: (r) =>
      outcome(r.left, r.leftSimilarity) },
    { name: "right", value: (r) => r.rightSimilarity ?? -1, cell: (r) =>
      outcome(r.right, r.rightSimilarity) },
    { name: "adapter on the right", text: true, value: (r) => r.adapter, cell: (r) =>
      el("span", { title: r.adapter }, adapter(r.adapter)) },
    { name: "needs", text: true, value: (r) => `${r.tags.length} ${r.tags.join(" ")}`, cell: (r) =>
      r.tags.map(words).join(", ") },
    { name: "lost to", text: true, value: (r) => r.error },
  ].filter((c) => c.name !== "lost to" || rows.some((r) => r.error)), rows);
}

export const clean = (state) =>
  Object.fromEntries(Object.entries(state).filter(([, v]) => v !== "" && v !== undefined));
