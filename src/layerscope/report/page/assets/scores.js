// Scores over the layers: one line per readout of the chosen model, and the other models beside it.
const evaluation = () => data.scores[state.evaluation];
const readoutOf = (run, name) => run.readouts.find((r) => r.readout === name);

// The scores of one task, or the mean over all, by layer.
function scoreLine(run, block, task) {
  if (task !== MEAN) {
    const at = block.tasks.findIndex((t) => run.tasks[t].name === task);
    return at < 0 ? null : block.score[at];
  }
  return block.mean;
}

function scoreLines() {
  const run = evaluation();
  const out = [];
  // the reference first: it has the first color and an unbroken line
  const ordered = run.readouts.slice().sort((a, b) => (b.readout === run.reference) - (a.readout === run.reference));
  ordered.forEach((block, i) => {
    const y = scoreLine(run, block, state.task);
    if (!y) return;
    const alone = run.readouts.length === 1;
    out.push({
      key: run.label + "|" + block.readout, name: alone ? run.label : readoutName(block.readout), color: alone ? run.color : i, dash: alone ? "" : ["", "9 4", "2 4", "9 3 2 3", "14 4"][i % 5],
      marker: ["circle", "square", "triangle", "diamond", "cross"][i % 5], x: run.layers.map((k) => position(k, run.blocks)), layers: run.layers, y,
    });
  });
  data.scores.forEach((other, i) => {
    if (i === state.evaluation) return;
    const block = readoutOf(other, run.readouts.length === 1 ? state.readout : other.reference) || readoutOf(other, other.reference);
    const y = block && scoreLine(other, block, state.task);
    if (y) out.push({ key: other.label, name: other.label, color: run.readouts.length === 1 ? other.color : 6, dash: "4 2", marker: other.marker, x: other.layers.map((k) => position(k, other.blocks)), layers: other.layers, y });
  });
  return out;
}

let scoreChart = null;
function buildScores() {
  if (!data.scores.length) return;
  $("scores").hidden = false;
  const host = $("score-controls");
  const tasks = choice("Task", "task", taskNames(evaluation()).map((t) => [t, t]));
  const pick = (value) => {
    const run = data.scores[Number(value)];
    const names = taskNames(run);
    tasks.refill(names.map((t) => [t, t]));
    set({ evaluation: Number(value), readout: readoutOf(run, state.readout) ? state.readout : run.reference, task: names.includes(state.task) ? state.task : names[0] });
    tasks.refill(names.map((t) => [t, t]));
  };
  host.append(choice("Model", "evaluation", data.scores.map((s, i) => [String(i), s.label]), pick), tasks);
  scoreChart = lineChart($("score-chart"), {
    name: "Score by layer", unit: "main score × 100", wide: true, height: 330, text: score, series: scoreLines,
    means: () => state.task + (evaluation().readouts.length > 1 ? ": one line per way of reading a text" : ""),
    marks: () => marksNow().filter((m) => m.model === evaluation().model),
  });
  on(["evaluation", "task", "axis", "theme", "readout"], () => scoreChart.draw());
  on(["cursor"], () => scoreChart.follow());
}
