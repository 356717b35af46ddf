// The address after # holds what is shown, so that the browser's buttons work and links can be kept.
import { conversation } from "report/conversation";
import { load } from "report/data";
import { el, link } from "report/dom";
import { overview } from "report/overview";
import { run } from "report/run";
import { clean, tasks } from "report/tasks";

const main = document.getElementById("main");
const read = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const go = (state) => { location.hash = String(new URLSearchParams(clean(state))); };
let last = 0;

async function view(index, state) {
  switch (state.view ?? (index.runs.length > 1 ? "runs" : "run")) {
    case "run": {
      const at = Number(state.run ?? 0);
      return run(index, at, await load(`run-${at}`));
    }
    case "tasks": return tasks(index, state, go);
    case "task": return conversation(index, state, go);
    default: return overview(index);
  }
}

async function show() {
  const turn = ++last;
  const index = await load("index");
  const state = read();
  navigation(index, state);
  let content;
  try {
    content = await view(index, state);
  } catch (error) {
    content = [el("h1", {}, "This cannot be shown"), el("p", {}, String(error)),
      el("p", {}, link({}, "Back to the start"))];
  }
  if (turn !== last) return; // something else was asked for meanwhile
  main.replaceChildren(...content.flat(Infinity).filter(Boolean));
  document.documentElement.dataset.view = state.view ?? "";
  window.scrollTo(0, 0);
  performance.mark("shown");
}

function navigation(index, state) {
  const many = index.runs.length > 1;
  const items = [many ? ["Runs", {}, ["", "runs"]] : ["Run", {}, ["", "run"]],
    ["Tasks", { view: "tasks" }, ["tasks", "task"]]];
  document.getElementById("nav").replaceChildren(...items.map(([text, to, views]) =>
    link(to, text, { "aria-current": views.includes(state.view ?? "") ? "page" : null })));
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const press = (id) => document.getElementById(id)?.click();
  if (event.key === "ArrowLeft") press("previous");
  else if (event.key === "ArrowRight") press("next");
  else if (event.key === "Escape") press("back");
  else if (event.key === "/") {
    document.getElementById("search")?.focus();
    event.preventDefault();
  }
});
window.addEventListener("hashchange", show);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
show();
