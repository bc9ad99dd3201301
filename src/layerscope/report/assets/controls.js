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

const SET_NAMES = { main: "main", tokens: "tokens", pooled: "pooled texts", views: "views", other: "other", all: "all" };
const isIn = (name) => (metric) => name === "all" || (name === "main" ? metric.main : metric.level === name);
const inSet = (metric) => isIn(state.set)(metric);

function buildControls() {
  const host = $("controls"), metrics = data.curves;
  host.hidden = !metrics.length;
  if (host.hidden) return;
  const sets = Object.keys(SET_NAMES).filter((name) => metrics.some(isIn(name)));
  if (!sets.includes(state.set)) state.set = sets[0];
  host.append(choice("Metrics", "set", sets.map((name) => [name, `${SET_NAMES[name]} (${metrics.filter(isIn(name)).length})`])));
  if (data.sinks) host.append(segments("Largest token (sink)", "sink", [["both", "both"], ["keep", "kept"], ["drop", "dropped"]]));
  if (data.norms.length > 1) host.append(segments("Final norm", "norm", [["all", "all"], ...data.norms.map((n) => [n, n])]));
  if (data.parts.length > 1) host.append(choice("Site", "part", data.parts.map((p) => [p, p || "block output"])));
  const legend = el("ul", { class: "legend", "aria-label": "Runs" });
  host.append(legend);
  const buttons = data.runs.map((run) => {
    const toggle = () => set({ hidden: isShownRun(run) ? [...state.hidden, run.label] : state.hidden.filter((name) => name !== run.label) });
    const button = el("button", { type: "button", onclick: toggle }, swatch(run), run.label + ", " + plural(run.blocks, "block"));
    legend.append(el("li", {}, button));
    return [run, button];
  });
  if (data.sinks) legend.append(el("li", { class: "key" }, swatch({ color: 6, dash: "2 2" }), "largest token dropped"));
  const press = () => buttons.forEach(([run, button]) => button.setAttribute("aria-pressed", String(isShownRun(run))));
  press();
  on(["hidden"], press);
}
function swatch(run) {
  return svg("svg", { width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 29, y1: 6, y2: 6, css: { stroke: `var(--c${run.color})` }, "stroke-width": 2.2, "stroke-dasharray": run.dash || null }));
}
