// Charts are Vega-Lite specifications from Python, drawn when they come into view. They share a cursor.
const SWITCHED = {
  run: (value) => !state.hidden.includes(value),
  sink: (value) => state.sink === "both" || value === state.sink,
  norm: (value) => state.norm === "all" || value === state.norm,
  part: (value) => value === state.part,
  task: (value) => value === state.task,
};
const isShown = (row) => Object.entries(SWITCHED).every(([name, test]) => !known(row[`by_${name}`]) || test(row[`by_${name}`]));
const CONFIG = {
  background: null,
  font: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
  view: { stroke: null },
  title: { color: "var(--ink)" },
  axis: { labelColor: "var(--faint)", titleColor: "var(--faint)", gridColor: "var(--grid)", domainColor: "var(--line)", tickColor: "var(--line)", titleFontWeight: "normal" },
  legend: { labelColor: "var(--soft)", titleColor: "var(--faint)", orient: "bottom", labelLimit: 320, symbolSize: 200, titleFontWeight: "normal" },
};
const OPTIONS = { mode: "vega-lite", logLevel: 1, renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip: { disableDefaultStyle: true }, config: CONFIG };

// Rows are sent as columns; a column of words is sent as its words and a place for each row.
function rowsOf(packed) {
  const columns = Object.entries(packed.columns).map(([name, c]) => [name, c.words ? c.at.map((i) => c.words[i]) : c]);
  return Array.from({ length: packed.length }, (_, i) => Object.fromEntries(columns.map(([name, values]) => [name, values[i]])));
}

// The program that draws is sent packed. The page's policy lets it run because it knows its hash.
async function loadVega() {
  const script = el("script");
  script.textContent = new TextDecoder().decode(await inflate($("vega").textContent));
  document.head.append(script);
}
const vegaLoaded = canInflate ? loadVega() : null;

const charts = new Map();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.get(entry.target);
    if (!chart) continue;
    chart.isVisible = entry.isIntersecting;
    if (chart.isVisible && chart.isStale) chart.paint();
  }
}, { rootMargin: "400px" });

// Both themes take their colors from the style sheet, so that a drawn chart changes with the theme.
function themed(spec) {
  let text = JSON.stringify(spec);
  data.palette.forEach((color, i) => { text = text.replaceAll(`"${color}"`, `"var(--c${i})"`); });
  return JSON.parse(text.replaceAll(`"${data.ink}"`, '"var(--ink)"').replaceAll('"fill":"white"', '"fill":"var(--halo)"').replaceAll('"stroke":"white"', '"stroke":"var(--halo)"'));
}

function drawChart(host, chart) {
  const plot = el("div", { class: "plot", tabindex: 0, role: "group", "aria-label": chart.title + ". Arrow keys move along the layers." });
  const read = el("p", { class: "read", "aria-live": "off" });
  const heading = el("figcaption", {}, el("span", { class: "name" }, chart.title), el("span", { class: "unit" }, chart.unit), el("span", { class: "means" }, chart.says));
  const figure = el("figure", { class: "card" + (chart.wide ? " wide" : "") }, heading, plot, chart.live ? read : null);
  host.append(figure);
  plot.style.minHeight = chart.height + "px";
  const spec = themed(chart.spec), tables = Object.entries(chart.rows).map(([name, packed]) => [name, rowsOf(packed)]);
  const held = { figure, isStale: true, isVisible: false, view: null, paint, draw, follow, drop };
  let drawing = 0, shown = [];
  charts.set(plot, held);
  watcher.observe(plot);

  function draw() { held.isStale = true; if (held.isVisible) paint(); }
  function drop() { watcher.unobserve(plot); charts.delete(plot); if (held.view) held.view.finalize(); figure.remove(); }
  async function paint() {
    held.isStale = false;
    if (!canInflate) { plot.textContent = "This browser is too old to draw charts."; plot.dataset.drawn = "yes"; return; }
    delete plot.dataset.drawn;
    const mine = ++drawing;
    const datasets = Object.fromEntries(tables.map(([name, rows]) => [name, rows.filter(isShown)]));
    shown = chart.live ? Object.values(datasets).flat().filter((row) => known(row.value)) : [];
    const isNarrow = plot.clientWidth < 560;
    const legend = { ...CONFIG.legend, columns: isNarrow ? 1 : 3 };
    const axis = { ...CONFIG.axis, labelLimit: isNarrow ? 120 : 300 };
    const width = spec.width === "container" ? { width: "container", autosize: { type: "fit-x", contains: "padding" } } : {};
    const config = { ...CONFIG, axis, legend };
    const target = el("div", { class: "drawing" });
    plot.append(target);
    await vegaLoaded;
    const made = await vegaEmbed(target, { ...spec, ...width, datasets, config }, OPTIONS);
    if (mine !== drawing) { made.view.finalize(); target.remove(); return; }
    for (const old of [...plot.children]) if (old !== target) old.remove();
    if (held.view) held.view.finalize();
    held.view = made.view;
    plot.style.minHeight = "";
    plot.dataset.drawn = "yes";
    follow();
  }
  // The values at the cursor, in the chart and in a line below it.
  function follow() {
    if (!held.view || !chart.live) return;
    held.view.signal("cursor", state.cursor === null ? -1 : state.cursor).runAsync();
    const values = state.cursor === null ? [] : shown.filter((row) => Math.abs(row.x - state.cursor) < 1e-9);
    const interval = (row) => (known(row.low) && known(row.high) ? ` [${fmt(row.low)}, ${fmt(row.high)}]` : "");
    read.textContent = values.length ? `${values[0].at}: ` + values.map((row) => `${row.name} ${fmt(row.value)}${interval(row)}`).join(" · ") : "";
  }
  const places = () => distinct(shown.map((row) => row.x)).sort((a, b) => a - b);
  if (!chart.live) return held;
  plot.addEventListener("pointermove", (event) => {
    const svgNode = plot.querySelector("svg");
    if (!held.view || !svgNode) return;
    const at = held.view.scale("x").invert(event.clientX - svgNode.getBoundingClientRect().left - held.view.origin()[0]);
    const near = places().reduce((best, x) => (best === null || Math.abs(x - at) < Math.abs(best - at) ? x : best), null);
    set({ cursor: near });
  });
  plot.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") set({ cursor: null }); });
  plot.addEventListener("blur", () => set({ cursor: null }));
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { set({ cursor: null }); return; }
    const move = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!move && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    const xs = places(), now = state.cursor === null ? (move > 0 ? -1 : xs.length) : xs.findIndex((x) => Math.abs(x - state.cursor) < 1e-9);
    const to = event.key === "Home" ? 0 : event.key === "End" ? xs.length - 1 : Math.min(xs.length - 1, Math.max(0, now + move));
    set({ cursor: xs[to] });
    say(chart.title + ", " + read.textContent);
  });
  return held;
}
on(["cursor"], () => { for (const chart of charts.values()) chart.follow(); });

function buildCurves() {
  if (!data.curves.length) return;
  $("curves").hidden = false;
  $("curves-says").append(` Measured on ${data.texts.join("; ") || "texts that the run does not name"}.`);
  let drawn = [];
  function rebuild() {
    for (const chart of drawn) chart.drop();
    drawn = data.curves.filter(inSet).map((chart) => drawChart($("grid"), chart));
  }
  rebuild();
  on(["set"], rebuild);
  on(["sink", "norm", "part", "hidden"], () => drawn.forEach((chart) => chart.draw()));
}

function buildScores() {
  if (!data.scores) return;
  const { tasks, lines } = data.scores;
  $("scores").hidden = false;
  $("score-controls").append(choice("Task", "task", tasks.map((t) => [t, t])));
  const chart = drawChart($("score-chart"), lines);
  on(["task"], () => chart.draw());
}

// A table that belongs to what a block says; what its first column repeats is shown once.
function inlineTable(table) {
  const [first, ...rest] = table.columns;
  const rows = first.map((value, i) => {
    const isRepeated = i > 0 && first[i - 1] === value;
    return el("tr", { class: isRepeated ? "same" : null }, el("td", {}, isRepeated ? "" : String(value)), rest.map((column, j) => el("td", { "data-head": table.head[j + 1] }, known(column[i]) || typeof column[i] === "string" ? String(column[i]) : "–")));
  });
  const head = el("thead", {}, el("tr", {}, table.head.map((name) => el("th", { scope: "col" }, name))));
  return el("div", { class: "scroll inline", tabindex: "0", role: "region", "aria-label": table.title }, el("table", {}, el("caption", {}, table.title), head, el("tbody", {}, rows)));
}

function buildBlocks() {
  data.blocks.forEach((block, n) => {
    const id = "block-" + n, several = block.charts.filter((chart) => !chart.wide).length > 1;
    const host = el("div", { class: several ? "grid" : "picture" });
    const [first, ...rest] = block.words;
    const figures = block.figures.map((source, i) => el("img", { class: "drawn", src: source, alt: block.title + ", figure " + (i + 1) }));
    $(block.chosen ? "chosen" : "blocks").append(el("section", { class: "block", "data-kind": block.kind, "aria-labelledby": id },
      el("h2", { id }, block.title), first ? el("p", { class: "answer" }, first) : null,
      rest.length ? el("ul", { class: "points" }, rest.map((text) => el("li", {}, text))) : null, host, block.tables.map(inlineTable), figures));
    for (const chart of block.charts) drawChart(host, chart);
  });
}
