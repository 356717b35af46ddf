// A task's conversations of two agents next to each other, and any other stored conversation.
import { load } from "report/data";
import { adapter, el, link, number, select, shown, words } from "report/dom";
import { choices, clean, compared, passing, side } from "report/tasks";

const WHO = { assistant: "agent", tool: "tool result", user: "user", system: "system" };

export async function conversation(index, state, go) {
  const left = state.left ?? "0/base", right = state.right ?? "0/final";
  const rows = passing(await compared(index, left, right), state);
  const at = rows.findIndex((r) => r.id === state.task);
  const step = (by, text, key) => {
    const next = rows[at + by];
    return at < 0 || !next ? el("span", { class: "note" }, text)
      : link(clean({ ...state, view: "task", left, right, task: next.id }), text, { id: key });
  };
  const row = rows[at];
  return [
    el("h1", {}, state.task),
    row?.tags.length ? el("p", { class: "note" }, `Needs: ${row.tags.map(words).join(", ")}`) : null,
    el("div", { class: "controls" },
      link(clean({ ...state, view: "tasks", left, right, task: "" }), "back to the list",
        { id: "back" }),
      step(-1, "\u2190 previous task", "previous"), step(1, "next task \u2192", "next")),
    el("div", { class: "sides" },
      await pane(index, state, "left", left, go), await pane(index, state, "right", right, go)),
  ];
}

async function pane(index, state, name, chosen, go) {
  const [run, agent] = side(chosen);
  const data = await load(`run-${run}`);
  const places = stored(data, agent, state.task);
  const number = Math.min(Number(state[`${name}Trial`] ?? 0), Math.max(0, places.length - 1));
  const change = (more) => go({ ...state, view: "task", ...more });
  const head = el("div", { class: "controls" },
    select(name === "left" ? "Left" : "Right", [...await options(index, data, run, state.task)],
      chosen, (value) => change({ [name]: value })),
    places.length > 1 ? select("Episode", places.map((q, i) => [String(i), q.title]),
      String(number), (value) => change({ [`${name}Trial`]: value })) : null);
  if (!places.length) {
    return el("article", { class: "side" }, head, el("p", {}, "This run keeps no conversation of " +
      `${words(agent)} on this task. It keeps those of the base agent, of the final agent and of ` +
      "training."), outcome(data, agent, state.task));
  }
  const { part, place } = places[number];
  const talk = (await load(`talk-${run}-${part}`))[place];
  const same = data.same[agent] ? el("p", { class: "note" }, `${words(agent)} is the same agent as ` +
    `${words(data.same[agent])}.`) : null;
  return el("article", { class: "side" }, head, same, body(talk, data.tools));
}

// The agents that can be chosen: all of all runs, and the calls of training that ran this task.
async function options(index, data, run, task) {
  const calls = Object.keys(data.talks).filter((c) => !c.startsWith("evaluation/") &&
    data.talks[c][task]);
  return [...await choices(index), ...calls.map((c) => [`${run}/call:${c}`,
    `${index.runs.length > 1 ? `${index.runs[run].name}: ` : ""}training: ${c}`])];
}

// Where the stored episodes of an agent on a task are: [{part, place, title}]. An agent that is
// another one under a second name (final is base where nothing was trained) has that one's.
function stored(data, agent, task) {
  const call = agent.startsWith("call:") ? agent.slice(5) : `evaluation/${agent}`;
  const found = Object.keys(data.talks).filter((c) => c === call || c.startsWith(`${call}/`)).sort()
    .flatMap((c) => (data.talks[c][task] ?? []).map(([part, place], i) => ({ part, place,
      title: `${i + 1}${c === call ? "" : ` of ${c}`}` })));
  return found.length || !data.same[agent] ? found : stored(data, data.same[agent], task);
}

function outcome(data, agent, task) {
  const columns = data.tasks.agents[agent], i = data.tasks.ids.indexOf(task);
  return columns && i >= 0 ? el("p", {}, `Success ${number(columns.success[i])}, similarity ` +
    `${number(columns.similarity[i])}.`) : null;
}

function body(talk, tools) {
  const used = talk.tools.map((i) => tools[i]);
  return [
    verdict(talk),
    el("details", {}, el("summary", {}, `${used.length} tools`), used.map((t) =>
      el("pre", {}, `${t.name}: ${t.description ?? ""}\n${JSON.stringify(t.parameters)}`))),
    talk.messages.map((m, i) => message(m, i)),
    parts("Milestones", talk.score?.milestones, "hit", "missed"),
    parts("Minefields", talk.score?.minefields, "stepped on", "avoided"),
    json({ ...talk, tools: used }),
  ];
}

// The episode as the file holds it, written when it is opened.
function json(talk) {
  const text = el("pre");
  return el("details", { class: "json", ontoggle: () => {
    text.textContent ||= JSON.stringify(talk, null, 2);
  } }, el("summary", {}, "as JSON"), text);
}

function verdict(talk) {
  const s = talk.score;
  return el("p", {}, s ? el("span", { class: s.success ? "gained" : "lost" },
    s.success ? "\u2713 success" : "\u2717 failure") : "no score",
  s ? `, similarity ${number(s.similarity)}` : "", `. Stopped: ${words(talk.stop)}. ` +
  `${talk.tokens} tokens, adapter ${adapter(talk.adapter ?? "none (base model)")}, seed ${talk.seed}.`,
  talk.failure ? el("span", { class: "lost" }, ` Lost at the ${talk.failure.boundary}: ` +
    talk.failure.error) : null);
}

function message(m, place) {
  return el("div", { class: `message ${m.role in WHO ? m.role : "system"}` },
    el("div", { class: "who" }, el("b", {}, WHO[m.role] ?? m.role), `message ${place}`,
      m.tokens ? el("span", {}, `${m.tokens[0]} tokens read, ${m.tokens[1]} written`) : null,
      m.truncated ? el("span", { class: "lost" }, "cut off at the token limit") : null,
      m.malformed ? el("span", { class: "lost" }, `unreadable call: ${m.malformed}`) : null),
    m.thoughts ? el("details", {}, el("summary", {}, "thoughts"), el("pre", {}, m.thoughts)) : null,
    m.content || !m.calls.length ? el("pre", {}, m.content || "(silence)") : null,
    m.calls.map(([name, given]) => el("pre", {}, `${name}(${pretty(given)})`)));
}

function pretty(given) {
  try {
    return Object.entries(JSON.parse(given)).map(([k, v]) => `${k}=${JSON.stringify(v)}`)
      .join(", ");
  } catch {
    return shown(given);
  }
}

function parts(title, found, yes, no) {
  if (!found?.length) return null;
  return [el("h3", {}, title), el("ul", {}, found.map((m) => el("li", {},
    el("span", { class: (title === "Milestones") === m.hit ? "hit" : "missed" },
      m.hit ? yes : no), `: ${m.name}, ${number(m.similarity, 2)}` +
      (m.place === null ? "" : ` at message ${m.place}`))))];
}
