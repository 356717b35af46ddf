// Curves of the runs that a reader chooses, one over the other.
import { chart, colour, dash, symbol } from "report/charts";
import { load } from "report/data";
import { el, section, select } from "report/dom";

const MOST = 12; // lines that can be told apart
const KINDS = {
  dev: { name: "success on the development split", y: "success",
    points: (data) => (data.summary.curve ?? []).map((c) => [c.rollouts, c.success]) },
  reward: { name: "reward of training", y: "mean reward", points: (data) => data.training
    .flatMap((r, i, all) => (i && version(r) !== version(all[i - 1]) ? [[r.rollouts, null]] : [])
      .concat([[r.rollouts, r.reward]])) }, // a new adapter begins a new line
};
const version = (row) => String(row.adapter).split("@")[0];

export function curves(index) {
  const runs = index.runs.map((run, i) => ({ name: run.name, i, curves: run.curves }))
    .filter((run) => run.curves);
  if (runs.length < 2) return null;
  const place = el("div");
  let kind = "dev", chosen = runs.slice(0, 6);

  async function draw() {
    const { name, y, points } = KINDS[kind];
    const now = chosen.slice(0, MOST), data = await Promise.all(now.map((r) => load(`run-${r.i}`)));
    const lines = now.map((run, i) => ({ run, i, at: points(data[i]).filter(([, v]) =>
      v !== undefined) })).filter((line) => line.at.length);
    if (!lines.length) {
      place.replaceChildren(el("p", { class: "note" }, `None of the chosen runs has the ${name}.`));
      return;
    }
    const without = now.length - lines.length, over = chosen.length - now.length;
    place.replaceChildren(chart(`${name[0].toUpperCase()}${name.slice(1)} over charged rollouts.` +
      (without ? ` ${without} of the chosen runs have none.` : "") +
      (over ? ` Only the first ${MOST} of those chosen are drawn.` : ""),
    lines.map(({ run, i, at }) => ({ type: "scatter", mode: "lines+markers", name: run.name,
      x: at.map((p) => p[0]), y: at.map((p) => p[1]), connectgaps: false,
      line: { color: colour(i), dash: dash(i) }, marker: { symbol: symbol(i), size: 7 } })),
    { xaxis: { title: { text: "charged rollouts" }, rangemode: "tozero" },
      yaxis: { title: { text: y }, rangemode: "tozero" }, showlegend: true,
      legend: { orientation: "h", y: -0.3 } }, 320 + 12 * lines.length));
  }

  const list = el("select", { multiple: true, size: Math.min(8, runs.length), onchange: (event) => {
    chosen = [...event.target.selectedOptions].map((option) => runs[Number(option.value)]);
    draw();
  } }, runs.map((run, i) => el("option", { value: i, selected: i < chosen.length }, run.name)));
  draw();
  return section("Curves of chosen runs", el("div", { class: "controls" },
    el("label", {}, "Runs (Ctrl or Shift for several)", list),
    select("Curve", Object.entries(KINDS).map(([key, { name }]) => [key, name]), kind, (key) => {
      kind = key;
      draw();
    })), place);
}
