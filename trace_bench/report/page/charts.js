// Charts by Plotly in the page's own colours. Series differ in symbol and dash as well as colour.
import { plotly } from "report/data";
import { el } from "report/dom";

const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star", "cross"];
const PATTERNS = ["", "/", ".", "x", "-", "\\", "+", "|"];

export const colour = (i) => COLOURS[i % COLOURS.length];
export const dash = (i) => DASHES[i % DASHES.length];
export const symbol = (i) => SYMBOLS[i % SYMBOLS.length];
export const pattern = (i) => PATTERNS[i % PATTERNS.length];

function layout(own) {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: value("--line"), zerolinecolor: value("--line"), automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: value("--text"), size: 13 },
    margin: { l: 10, r: 15, t: 10, b: 40 },
    legend: { orientation: "h", y: -0.35 },
    ...own,
    xaxis: { ...axis, ...own.xaxis }, yaxis: { ...axis, ...own.yaxis },
  };
}

// Plotly reads names, texts and categories as HTML: all of them are text here.
const escaped = (value) => Array.isArray(value) ? value.map(escaped) :
  typeof value !== "string" ? value :
    value.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

const shown = (series) => series.map((one) => Object.fromEntries(Object.entries(one).map(
  ([key, value]) => [key, ["name", "text", "x", "y"].includes(key) ? escaped(value) : value])));

// A figure with its caption. `series` and `own` are Plotly's data and layout.
export function chart(caption, series, own, height = 300) {
  const place = el("div", { class: "chart", style: `height:${height}px`, role: "img",
    "aria-label": caption });
  const config = { displaylogo: false, responsive: true, displayModeBar: false };
  let drawn = false;
  const draw = () => {
    if (drawn || !place.isConnected) return;
    drawn = true;
    seen.disconnect();
    plotly().then((P) => P.newPlot(place, shown(series), layout({ height, ...own }), config));
  };
  // The library is large: what is there already is painted before it is run.
  const seen = new IntersectionObserver((entries) => {
    if (entries.some((e) => e.isIntersecting)) setTimeout(draw, 50);
  });
  seen.observe(place);
  setTimeout(draw, 1500); // also what nobody has looked at: the page may be printed
  addEventListener("beforeprint", draw);
  return el("figure", {}, place, el("figcaption", {}, caption));
}

const MOST = 60; // rows of dots that a reader can compare

// One dot with its interval per row of [name, value, low, high].
export function dots(caption, every, title, zero = false) {
  const rows = every.slice(0, MOST);
  if (rows.length < every.length) caption += ` The first ${MOST} of ${every.length}.`;
  const series = [{
    type: "scatter", mode: "markers", orientation: "h",
    y: rows.map((r) => r[0]), x: rows.map((r) => r[1]),
    error_x: { type: "data", symmetric: false, array: rows.map((r) => r[3] - r[1]),
      arrayminus: rows.map((r) => r[1] - r[2]), color: colour(0) },
    marker: { color: colour(0), size: 9 }, cliponaxis: false,
    hovertemplate: "%{y}: %{x:.3f}<extra></extra>",
  }];
  const x = { title: { text: title }, ...(zero ? { zeroline: true, zerolinewidth: 2 } :
    { range: [0, 1.02] }) };
  return chart(caption, series,
    { xaxis: x, yaxis: { autorange: "reversed", type: "category" }, showlegend: false },
    70 + 30 * rows.length);
}
