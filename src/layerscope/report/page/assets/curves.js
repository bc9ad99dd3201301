// One chart per metric, one line per run and sink setting.
const visibleRuns = () => data.curves.filter((c) => shown(c) && (state.finalNorm === "all" || c.norm === state.finalNorm));

function seriesOf(run, metric, sink) {
  const part = run.parts[state.part];
  if (!part) return null;
  const held = part.series.filter((s) => s.metric === metric && s.sink === sink);
  const found = held.find((s) => s.norm === state.norm) || held.find((s) => s.norm === "raw") || held[0];
  if (!found) return null;
  return { part, found, normed: found.norm === state.norm };
}

function curveLines(metric) {
  const out = [];
  for (const run of visibleRuns()) {
    const keep = seriesOf(run, metric, "keep"), drop = seriesOf(run, metric, "drop");
    const both = state.sink === "both";
    if (keep && (state.sink !== "drop" || !drop)) out.push(lineOf(run, keep, "keep", false, drop && both));
    if (drop && state.sink !== "keep") out.push(lineOf(run, drop, "drop", both, false));
  }
  return out;
}
function lineOf(run, { part, found }, sink, thin, paired) {
  return {
    key: run.label + "|" + sink, name: run.label + (thin ? ", sink dropped" : ""), color: run.color, dash: run.dash, marker: run.marker, thin, paired,
    x: part.layer.map((k, i) => (state.axis === "layer" ? k : part.depth[i])), layers: part.layer, y: found.v, lo: found.lo, hi: found.hi,
  };
}

const curveCharts = [];
function buildCurves() {
  if (!data.curves.length) return;
  $("curves").hidden = false;
  $("curves-says").append(` Measured on ${distinct(data.curves.map((c) => c.texts).filter(Boolean)).join("; ") || "texts that the run does not name"}.`);
  function rebuild() {
    for (const chart of curveCharts.splice(0)) chart.drop();
    for (const metric of data.metrics.filter(inSet)) {
      const lacks = () => state.norm !== "raw" && visibleRuns().some((run) => { const s = seriesOf(run, metric.name, "keep"); return s && !s.normed; });
      curveCharts.push(lineChart($("grid"), {
        name: metric.title, unit: metric.unit, log: metric.log,
        means: () => (metric.higher ? "Higher: " + metric.higher + "." : "") + (lacks() ? " Has no such normalization: as measured." : ""),
        series: () => curveLines(metric.name),
        marks: () => marksNow(),
        notes: () => (metric.name !== "prompt_entropy" || state.norm !== "raw" || state.sink === "drop" || state.part ? [] : visibleRuns().filter((r) => r.valley).map((r) => ({
          x: position(r.valley.layer, r.blocks), y: r.valley.value, color: r.color,
          text: "layer " + r.valley.layer + (r.valley.sink ? ": the sink" : r.valley.sink === false ? ": not the sink" : ""),
        }))),
      }));
    }
  }
  rebuild();
  on(["set"], rebuild);
  on(["norm", "sink", "finalNorm", "axis", "part", "hidden", "theme"], () => curveCharts.forEach((chart) => chart.draw()));
  on(["cursor"], () => curveCharts.forEach((chart) => chart.follow()));
}
