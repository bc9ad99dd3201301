// What is shown, and what is drawn again when that changes.
const data = JSON.parse($("data").textContent);
const distinct = (values) => [...new Set(values)];

const state = {
  set: "main",
  sink: data.runs.length <= 3 ? "both" : "keep",
  norm: "all",
  part: data.parts.includes("") ? "" : data.parts[0],
  hidden: [],
  cursor: null,
  task: data.scores ? data.scores.tasks[0] : null,
  table: null,
  tableRun: 0,
  map: 0,
  reading: null,
  coloring: null,
  theme: null,
};

const listeners = [];
// The function runs when one of the named parts of the state changes.
function on(names, run) { listeners.push({ names, run }); }

function set(changes) {
  const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  if (!changed.length) return;
  Object.assign(state, changes);
  for (const listener of listeners) if (listener.names.some((name) => changed.includes(name))) listener.run(changed);
}

// Canvases need the colors themselves; everything else names them.
const dark = () => document.documentElement.dataset.theme === "dark";
const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const color = (place) => styleOf(`--c${place % data.palette.length}`);
const mix = (a, b, t) => `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * t)).join(",")})`;
function themeColor(name) {
  const hex = styleOf(name).slice(1);
  const long = hex.length === 3 ? [...hex].map((c) => c + c).join("") : hex;
  return [0, 2, 4].map((i) => parseInt(long.slice(i, i + 2), 16));
}
const isShownRun = (run) => !state.hidden.includes(run.label);
