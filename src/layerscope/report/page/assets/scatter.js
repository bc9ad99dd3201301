// A metric against the score, layer by layer, and how strongly they go together.
// The profile of the chosen model that the scores are set against.
const candidates = () => data.correlations.map((c, i) => ({ ...c, i })).filter((c) => c.scores === state.evaluation);
const pairs = () => { const held = candidates(); return held.filter((c) => c.i === Number(state.pair)).concat(held).slice(0, 1); };
function likeliest() {
  const held = candidates(), norm = (state.readout || "").split("/").slice(-3)[0];
  const same = held.filter((c) => data.curves[c.curves].norm === norm);
  const best = (same.length ? same : held).sort((a, b) => b.metric.words.length - a.metric.words.length)[0];
  return best ? best.i : 0;
}
// Values that are means over the tasks' own texts go with mean scores only.
const pairTask = (pair) => (pair.task.words.includes(state.task) ? state.task : pair.task.words[0]);
function rhosOf(pair) {
  const out = [];
  const { readout, task, metric, sink } = pair;
  const wantedTask = task.words.indexOf(pairTask(pair)), wantedReadout = readout.words.indexOf(state.readout);
  pair.rho.forEach((value, i) => {
    if (task.at[i] !== wantedTask || readout.at[i] !== wantedReadout) return;
    out.push({ metric: metric.words[metric.at[i]], sink: sink.words[sink.at[i]], rho: value, chance: pair.chance[i], p: pair.p[i], n: pair.n[i] });
  });
  // beside the correlation with the mean score: the mean of the tasks' own
  if (pairTask(pair) === MEAN) for (const r of out) r.over = pair.over.find((o) => o.metric === r.metric && o.sink === r.sink && o.readout === state.readout);
  return out;
}
const strong = (text, p) => (known(p) && p < 0.05 ? el("b", { title: "adjusted p " + fmt(p) }, text) : el("span", { title: "adjusted p " + fmt(p) }, text));
// Whether a metric goes with the scores in models like these: one number per model, a t-test over families.
function overModels() {
  const held = [...data.over_models].sort((a, b) => a.p - b.p), cell = (text) => el("td", { class: "v" }, text);
  const rows = held.map((r) => el("tr", {}, el("td", {}, metricTitle(r.metric, "keep")), cell(rho(r.value)), cell(r.t.toFixed(1).replace("-", "−")), cell(strong(r.p_adjusted.toFixed(3), r.p_adjusted))));
  const head = el("tr", {}, el("th", {}, "Over " + plural(held[0].models, "model")), el("th", { class: "v" }, "mean ρ"), el("th", { class: "v" }, "t"), el("th", { class: "v" }, "Holm p"));
  return el("div", { id: "over-models" }, el("table", { class: "rho", "aria-label": "Correlations over models" }, el("thead", {}, head), el("tbody", {}, rows)),
    el("p", { class: "says" }, `A t-test over ${held[0].families} families of models, each read as its scores' first readout: does the place of a model's mean correlation among unrelated smooth curves differ from chance?`));
}
const metricTitle = (name, sink) => { const m = data.metrics.find((k) => k.name === name); return (m ? m.title : name) + (sink === "drop" ? ", sink dropped" : ""); };

function buildScatter() {
  if (!data.correlations.length) return;
  $("relation").hidden = false;
  state.pair = likeliest();
  const first = pairs()[0] || data.correlations[0];
  const strongest = rhosOf(first).filter((r) => known(r.rho)).sort((a, b) => Math.abs(b.rho) - Math.abs(a.rho))[0];
  state.metric = strongest ? strongest.metric + "|" + strongest.sink : first.metric.words[0] + "|keep";
  const options = () => { const p = pairs()[0] || first; return rhosOf(p).map((r) => [r.metric + "|" + r.sink, metricTitle(r.metric, r.sink)]); };
  const picker = choice("Metric", "metric", options());
  const profiles = choice("Metric measured in", "pair", []);
  const refillPairs = () => profiles.refill(candidates().map((c) => [String(c.i), data.curves[c.curves].label]));
  refillPairs();
  $("relation-controls").append(picker, profiles, choice("Score read by", "readout", evaluation().readouts.map((r) => [r.readout, readoutName(r.readout)])), choice("Task", "task", taskNames(evaluation()).map((t) => [t, t])));
  const readouts = $("relation-controls").querySelector("[data-switch=readout]"), tasks = $("relation-controls").querySelector("[data-switch=task]");
  const plot = el("div", { class: "plot card" }), table = el("div", {});
  plot.style.minHeight = "445px";
  $("scatter").append(plot);
  $("rhos").append(table);
  const chart = { stale: true, visible: false, width: 0, draw, paint };
  pending.set(plot, chart);
  watcher.observe(plot);
  resizer.observe(plot);
  let frame = null;
  function draw() { chart.stale = true; if (chart.visible) paint(); }

  function paint() {
    chart.stale = false;
    const style = getComputedStyle(plot);
    chart.width = Math.round(plot.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
    const width = Math.max(240, chart.width), height = 420;
    const [metric, sink] = state.metric.split("|");
    const sets = pairs().map((pair) => {
      const curves = data.curves[pair.curves], run = data.scores[pair.scores], part = curves.parts[""];
      const series = part && (part.series.find((s) => s.metric === metric && s.sink === sink && s.norm === state.norm) || part.series.find((s) => s.metric === metric && s.sink === sink && s.norm === "raw"));
      const block = readoutOf(run, state.readout), y = block && scoreLine(run, block, pairTask(pair));
      if (!series || !y) return null;
      const points = [];
      run.layers.forEach((layer, i) => { const k = part.layer.indexOf(layer); if (k >= 0 && known(series.v[k]) && known(y[i])) points.push({ layer, x: series.v[k], y: y[i] }); });
      return { curves, pair, points };
    }).filter((s) => s && s.points.length);
    const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img", "aria-label": `${metricTitle(metric, sink)} against score, a point per layer. Arrow keys move along the layers.` });
    plot.replaceChildren(root);
    frame = null;
    const all = sets.flatMap((s) => s.points);
    if (!all.length) { root.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "this run holds no such pair")); fillRhos(); return; }
    const range = (values) => { const a = Math.min(...values), b = Math.max(...values), pad = (b - a) * 0.07 || 1; return [a - pad, b + pad]; };
    const info = data.metrics.find((m) => m.name === metric) || {};
    const useLog = info.log && all.every((p) => p.x > 0);
    const [x0, x1] = useLog ? [Math.min(...all.map((p) => p.x)) / 1.2, Math.max(...all.map((p) => p.x)) * 1.2] : range(all.map((p) => p.x));
    const [y0, y1] = range(all.map((p) => p.y));
    const box = { left: 42, right: width - 12, top: 12, bottom: height - 42 };
    const x = (useLog ? logarithmic : linear)(x0, x1, box.left, box.right), y = linear(y0, y1, box.bottom, box.top);
    for (const t of ticks(y0, y1, 5)) root.append(svg("line", { class: "gridline", x1: box.left, x2: box.right, y1: y(t), y2: y(t) }), svg("text", { x: box.left - 7, y: y(t) + 4, "text-anchor": "end" }, tickText(t)));
    for (const t of useLog ? logTicks(x0, x1) : ticks(x0, x1, 5)) root.append(svg("text", { x: x(t), y: box.bottom + 16, "text-anchor": "middle" }, tickText(t)));
    root.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
      svg("text", { x: box.right, y: height - 5, "text-anchor": "end" }, metricTitle(metric, sink) + (info.unit ? " (" + info.unit + ")" : "") + " →"),
      svg("text", { x: box.left + 4, y: box.top - 1 }, "↑ score, " + pairTask(sets[0].pair)));
    for (const s of sets) {
      const ink = color(s.curves.color);
      root.append(svg("path", { d: "M" + s.points.map((p) => x(p.x).toFixed(1) + "," + y(p.y).toFixed(1)).join("L"), fill: "none", stroke: ink, opacity: 0.3, "stroke-width": 1.3, "stroke-dasharray": s.curves.dash || null }));
      s.points.forEach((p, i) => {
        const share = s.points.length > 1 ? i / (s.points.length - 1) : 1;
        const node = marker(s.curves.marker, x(p.x), y(p.y), 4.2, ink);
        node.setAttribute("opacity", (0.35 + 0.65 * share).toFixed(2));
        root.append(node);
      });
      const ends = [s.points[0], s.points[s.points.length - 1]];
      ends.forEach((p, i) => root.append(svg("text", { class: "tag", x: x(p.x) + (x(p.x) > box.right - 80 ? -7 : 7), y: y(p.y) - 7, "text-anchor": x(p.x) > box.right - 80 ? "end" : "start", css: { fill: ink } }, (i ? "last, " : "") + "layer " + p.layer)));
      for (const m of data.marks.filter((k) => k.model === s.curves.model)) {
        const p = s.points.find((q) => q.layer === m.layer);
        if (!p) continue;
        root.append(svg("circle", { cx: x(p.x), cy: y(p.y), r: 8.5, fill: "none", css: { stroke: "var(--ink)" }, "stroke-width": 1.8, class: "mark" }));
        const late = x(p.x) > box.right - 90; // its words would leave the card on the right
        if (!ends.includes(p)) root.append(svg("text", { class: "tag", x: x(p.x) + (late ? -11 : 11), y: y(p.y) + 4, "text-anchor": late ? "end" : "start", css: { fill: "var(--ink)" } }, m.kind + ", layer " + m.layer));
      }
    }
    frame = { root, sets, x, y, layer: root.appendChild(svg("g", {})) };
    root.addEventListener("pointermove", point);
    root.addEventListener("pointerdown", point);
    root.addEventListener("pointerleave", () => set({ cursor: null }));
    root.addEventListener("blur", () => set({ cursor: null }));
    root.addEventListener("keydown", (event) => {
      const d = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!d) return;
      event.preventDefault();
      const s = sets[0], places = s.points.map((p) => position(p.layer, s.curves.blocks));
      const now = state.cursor === null ? (d > 0 ? -1 : places.length) : places.indexOf(nearest(places, state.cursor));
      const to = Math.max(0, Math.min(places.length - 1, now + d));
      set({ cursor: places[to] });
      say(`layer ${s.points[to].layer}: ${metricTitle(metric, sink)} ${fmt(s.points[to].x)}, score ${score(s.points[to].y)}`);
    });
    fillRhos();
    follow();
  }

  function point(event) {
    const box = frame.root.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    let best = null;
    for (const s of frame.sets) for (const p of s.points) {
      const gap = Math.hypot(frame.x(p.x) - px, frame.y(p.y) - py);
      if (!best || gap < best.gap) best = { gap, p, s };
    }
    set({ cursor: best && best.gap < 60 ? position(best.p.layer, best.s.curves.blocks) : null });
  }

  function follow() {
    if (!frame || chart.stale) return;
    frame.layer.replaceChildren();
    if (state.cursor === null) return;
    for (const s of frame.sets) {
      const p = s.points.find((q) => Math.abs(position(q.layer, s.curves.blocks) - state.cursor) <= (state.axis === "layer" ? 0 : 0.5 / s.curves.blocks));
      if (!p) continue;
      const right = frame.x(p.x) > frame.root.viewBox.baseVal.width * 0.6;
      frame.layer.append(marker(s.curves.marker, frame.x(p.x), frame.y(p.y), 6.5, color(s.curves.color)),
        svg("text", { class: "value", x: frame.x(p.x) + (right ? -12 : 12), y: frame.y(p.y) + 18, "text-anchor": right ? "end" : "start", css: { fill: color(s.curves.color) } }, `layer ${p.layer}: ${fmt(p.x)}, ${score(p.y)}`));
    }
  }

  function fillRhos() {
    table.replaceChildren();
    for (const pair of pairs()) {
      const found = rhosOf(pair).filter((r) => known(r.rho)).sort((a, b) => Math.abs(b.rho) - Math.abs(a.rho));
      if (!found.length) continue;
      const tasks = Math.max(0, ...found.map((r) => (r.over ? r.over.tasks : 0)));
      const rows = found.map((r) => {
        const ink = color(data.curves[pair.curves].color), beyond = known(r.p) && r.p < 0.05;
        const key = r.metric + "|" + r.sink;
        const bar = svg("svg", { viewBox: "0 0 200 16", height: 16, preserveAspectRatio: "none", role: "img", "aria-label": `ρ ${rho(r.rho)}, chance reaches ${fmt(r.chance)}, adjusted p ${fmt(r.p)}` });
        if (known(r.chance)) bar.append(svg("rect", { x: 100 - 96 * r.chance, width: 192 * r.chance, y: 3, height: 10, css: { fill: "var(--grid)" } }));
        bar.append(svg("line", { x1: 100, x2: 100, y1: 0, y2: 16, class: "axis" }),
          svg("line", { x1: 100, x2: 100 + 96 * r.rho, y1: 8, y2: 8, stroke: ink, "stroke-width": beyond ? 5 : 2 }));
        return el("tr", { "aria-current": key === state.metric ? "true" : null },
          el("td", {}, el("button", { type: "button", onclick: () => set({ metric: key }) }, metricTitle(r.metric, r.sink))), el("td", { css: { width: "38%" } }, bar), el("td", { class: "v" }, rho(r.rho)),
          tasks ? el("td", { class: "v over" }, r.over ? strong(rho(r.over.value), r.over.p) : "–") : null);
      });
      const head = el("tr", {}, el("th", {}, data.curves[pair.curves].label), el("th", {}, "−1 … +1"), el("th", { class: "v" }, "ρ"), tasks ? el("th", { class: "v over" }, "over tasks") : null);
      const over = tasks ? ` Over tasks: the mean of the ${tasks} tasks' own correlations, compared with curves drawn for all of them together; bold: beyond chance, corrected over the metrics by their common draws.` : "";
      table.append(el("table", { class: "rho", "aria-label": "Correlation of every metric with the score" }, el("thead", {}, head), el("tbody", {}, rows)),
        el("p", { class: "says" }, pair.says + ". " + plural(found[0].n, "layer") + "." + over));
    }
    if (data.over_models.length) table.append(overModels());
  }
  on(["evaluation"], () => {
    readouts.refill(evaluation().readouts.map((r) => [r.readout, readoutName(r.readout)]));
    tasks.refill(taskNames(evaluation()).map((t) => [t, t]));
    $("relation").hidden = !candidates().length;
    state.pair = likeliest();
    refillPairs();
    keepMetric();
  });
  on(["pair"], keepMetric);
  on(["metric", "readout", "task", "evaluation", "pair", "norm", "theme"], draw);
  function keepMetric() {
    const held = options();
    if (held.length && !held.some(([key]) => key === state.metric)) state.metric = held[0][0];
    picker.refill(held);
  }
  on(["cursor", "axis"], follow);
}
