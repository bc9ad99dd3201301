// What is shown, and who must be told when that changes.
const data = JSON.parse($("data").textContent);
const distinct = (values) => [...new Set(values)];
const norms = distinct(data.curves.map((c) => c.norm));
const parts = distinct(data.curves.flatMap((c) => Object.keys(c.parts)));
const allSeries = data.curves.flatMap((c) => Object.values(c.parts).flatMap((p) => p.series));
const normalizations = distinct(allSeries.map((s) => s.norm));
const hasSinks = allSeries.some((s) => s.sink === "drop");
const startEvaluation = Math.max(0, data.scores.findIndex((s) => s.readouts.length > 1));
const MEAN = "mean over tasks";

function taskNames(evaluation) {
  const names = evaluation.tasks.map((t) => t.name);
  return names.length > 1 ? [MEAN, ...names] : names;
}

const state = {
  set: "main",
  norm: normalizations.includes("raw") ? "raw" : normalizations[0],
  sink: data.curves.length <= 3 ? "both" : "keep",
  finalNorm: "all",
  axis: distinct([...data.curves, ...data.scores, ...data.blocks.flatMap((b) => b.charts.flatMap((c) => c.lines))].map((r) => r.blocks)).length > 1 ? "depth" : "layer",
  part: parts.includes("") ? "" : parts[0],
  hidden: [],
  cursor: null,
  evaluation: startEvaluation,
  readout: data.scores.length ? data.scores[startEvaluation].reference : null,
  task: data.scores.length ? taskNames(data.scores[startEvaluation])[0] : null,
  shade: "gain",
  table: null,
  tableRun: 0,
  map: 0,
  reading: null,
  coloring: null,
  theme: null,
};

const listeners = [];
// The function runs when one of the named parts of the state changes; it is told which.
function on(names, run) { listeners.push({ names, run }); }

function set(changes) {
  const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  if (!changed.length) return;
  Object.assign(state, changes);
  if (changed.includes("axis")) { state.cursor = null; }
  for (const listener of listeners) if (listener.names.some((name) => changed.includes(name))) listener.run(changed);
}

// Colors follow the theme, so that they keep their contrast.
const dark = () => document.documentElement.dataset.theme === "dark";
const color = (place) => (dark() ? data.palette.dark : data.palette.light)[place % data.palette.light.length];
const shown = (run) => !state.hidden.includes(run.label);
const position = (layer, blocks) => (state.axis === "layer" ? layer : blocks ? layer / blocks : 0);
function whereText(x) {
  if (state.axis === "layer") return "layer " + x;
  return "depth " + x.toFixed(2);
}
