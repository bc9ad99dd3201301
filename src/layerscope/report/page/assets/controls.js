// Switches: radio groups and selects, so that the keyboard works as everywhere.
let names = 0;
function segments(label, name, options, extra) {
  const group = "g" + ++names;
  const box = el("div", { class: "field", "data-switch": name, role: "radiogroup", "aria-label": label }, el("span", { "aria-hidden": "true" }, label),
    el("div", { class: "seg" }, options.map(([value, text]) => el("label", {},
      el("input", { type: "radio", name: group, value, checked: state[name] === value, onchange: () => set({ [name]: value, ...(extra || {}) }) }),
      el("span", {}, text)))));
  on([name], () => { for (const input of box.querySelectorAll("input")) input.checked = input.value === state[name]; });
  return box;
}
function choice(label, name, options, pick) {
  const id = "s" + ++names;
  const node = el("select", { id, onchange: () => (pick ? pick(node.value) : set({ [name]: node.value })) });
  const box = el("div", { class: "field", "data-switch": name }, el("label", { for: id }, label), node);
  box.refill = (pairs) => {
    node.replaceChildren(...pairs.map(([value, text]) => el("option", { value }, text)));
    node.value = String(state[name]);
    box.hidden = pairs.length < 2;
  };
  box.refill(options);
  on([name], () => { node.value = String(state[name]); });
  return box;
}

const NORM_NAMES = { raw: "as measured", maxEntropy: "÷ max entropy", logN: "÷ log N", logD: "÷ log D", logNlogD: "÷ log N log D" };
const SET_NAMES = { main: "main", tokens: "tokens", pooled: "pooled texts", views: "views", other: "other", all: "all" };
const inSet = (metric) => state.set === "all" || (state.set === "main" ? metric.main : metric.level === state.set);

function buildControls() {
  const host = $("controls");
  if (data.curves.length) {
    const sets = ["main", "tokens", "pooled", "views", "other", "all"].filter((name) => name === "all" || data.metrics.some((m) => (name === "main" ? m.main : m.level === name)));
    if (!sets.includes(state.set)) state.set = sets[0];
    host.append(choice("Metrics", "set", sets.map((name) => [name, SET_NAMES[name] + " (" + data.metrics.filter((m) => name === "all" || (name === "main" ? m.main : m.level === name)).length + ")"])));
    if (normalizations.length > 1) host.append(choice("Normalization", "norm", normalizations.map((n) => [n, NORM_NAMES[n] || n])));
    if (hasSinks) host.append(segments("Largest token (sink)", "sink", [["both", "both"], ["keep", "kept"], ["drop", "dropped"]]));
    if (norms.length > 1) host.append(segments("Final norm", "finalNorm", [["all", "all"], ...norms.map((n) => [n, n])]));
    if (parts.length > 1) host.append(choice("Site", "part", parts.map((p) => [p, p || "block output"])));
  }
  const charted = data.curves.length || data.scores.length || data.blocks.some((b) => b.charts.length);
  host.hidden = !charted;
  host.append(segments("Horizontal axis", "axis", [["layer", "layer"], ["depth", "depth"]]));
  const legend = el("ul", { class: "legend", "aria-label": "Runs" });
  host.append(legend);
  function fillLegend() {
    legend.replaceChildren();
    for (const run of data.curves) {
      const toggle = () => set({ hidden: shown(run) ? [...state.hidden, run.label] : state.hidden.filter((name) => name !== run.label) });
      legend.append(el("li", {}, el("button", { type: "button", "aria-pressed": String(shown(run)), onclick: toggle }, swatch(run), run.label + ", " + run.blocks + " blocks")));
    }
    if (hasSinks && data.curves.length && state.sink !== "keep") legend.append(el("li", { class: "key" }, swatch({ color: 6, thin: true }), "largest token dropped"));
    if (data.marks.length) {
      const kinds = distinct(data.marks.map((m) => m.kind));
      legend.append(el("li", { class: "key" }, svg("svg", { width: 12, height: 10, viewBox: "0 0 12 10", "aria-hidden": "true" }, svg("path", { d: "M1,1h10l-5,8z", fill: "var(--soft)" })), kinds.join(" or ") + " layer"));
    }
  }
  fillLegend();
  on(["hidden", "theme", "sink"], () => {
    const inside = legend.contains(document.activeElement) ? [...legend.querySelectorAll("button")].indexOf(document.activeElement) : -1;
    fillLegend();
    if (inside >= 0) legend.querySelectorAll("button")[inside].focus();
  });
}

const marksNow = () => data.marks.map((mark) => {
  const run = [...data.curves, ...data.scores].find((r) => r.model === mark.model);
  return { ...mark, x: position(mark.layer, mark.n_blocks), color: run ? run.color : 6, run };
}).filter((mark) => !mark.run || !data.curves.includes(mark.run) || data.curves.some((c) => c.model === mark.model && shown(c)));
