// Task by layer. A bar under a cell: not told from the best of its task. An outline: the best.
const mix = (a, b, t) => `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * t)).join(",")})`;
function themeColor(name) {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
  const long = hex.length === 3 ? [...hex].map((c) => c + c).join("") : hex;
  return [0, 2, 4].map((i) => parseInt(long.slice(i, i + 2), 16));
}

function heatRows(run, block) {
  const rows = block.tasks.map((t, i) => ({ name: run.tasks[t].name, score: block.score[i], gain: block.gain[i], lo: block.lo[i], hi: block.hi[i], tied: new Set(block.tied[i]) }));
  if (rows.length < 2) return rows;
  const mean = scoreLine(run, block, MEAN);
  const last = lastKnown(mean);
  const gain = mean.map((v) => (known(v) ? v - last : null));
  return [{ name: MEAN, score: mean, gain, lo: [], hi: [], tied: new Set(), total: true }, ...rows];
}
const argmax = (values) => values.reduce((best, v, i) => (known(v) && (best < 0 || v > values[best]) ? i : best), -1);

// A text beside a mark above the cells: to its left where it would run into what stands at the right end.
function tagBeside(text, x, end, ink) {
  const toLeft = x + 9 + 6.4 * text.length > end;
  return svg("text", { class: "tag", x: x + (toLeft ? -9 : 9), y: 12, "text-anchor": toLeft ? "end" : "start", css: { fill: ink } }, text);
}

function buildHeat() {
  if (!data.scores.length) return;
  const host = $("heat"), controls = $("heat-controls");
  const readouts = choice("Read by", "readout", evaluation().readouts.map((r) => [r.readout, readoutName(r.readout)]));
  const scale = el("div", { class: "scale" });
  controls.append(readouts, segments("Color", "shade", [["gain", "gain over last layer"], ["score", "score within task"]]), scale);
  const plot = el("div", { class: "plot card" });
  const read = el("p", { class: "heat-read", "aria-live": "off" });
  plot.style.minHeight = 90 + 24 * evaluation().tasks.length + "px";
  host.append(plot, read);
  let frame = null, at = null;
  const chart = { stale: true, visible: false, width: 0, draw, paint };
  pending.set(plot, chart);
  watcher.observe(plot);
  resizer.observe(plot);
  function draw() { chart.stale = true; if (chart.visible) paint(); }

  function paint() {
    chart.stale = false;
    const run = evaluation(), block = readoutOf(run, state.readout) || run.readouts[0];
    const rows = heatRows(run, block), n = run.layers.length;
    const style = getComputedStyle(plot);
    chart.width = Math.round(plot.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
    const width = Math.max(260, chart.width);
    const wide = width > 640;
    const left = wide ? Math.min(270, 14 + 6.4 * Math.max(...rows.map((r) => r.name.length))) : Math.min(124, width * 0.34);
    const right = wide ? 104 : 4, row = wide ? 24 : 21, top = 22;
    const cell = (width - left - right) / n, height = top + rows.length * row + 34;
    plot.style.minHeight = "";
    const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img", "aria-label": `Scores of ${run.label}, ${rows.length} rows by ${n} layers. Arrow keys move from cell to cell.` });
    plot.replaceChildren(root);
    const most = Math.max(1, ...rows.flatMap((r) => r.gain).filter(known).map(Math.abs));
    const [mid, up, down, low, high] = ["--heat-mid", "--heat-up", "--heat-down", "--heat-low", "--heat-high"].map(themeColor);
    const paintOf = (r, i) => {
      if (!known(r.score[i])) return "none";
      if (state.shade === "gain") { const g = r.gain[i]; return known(g) ? mix(mid, g < 0 ? down : up, Math.sqrt(Math.min(1, Math.abs(g) / most))) : "none"; }
      const values = r.score.filter(known), min = Math.min(...values), span = Math.max(...values) - min || 1;
      return mix(low, high, (r.score[i] - min) / span);
    };
    const cut = Math.floor(left / 6.3) - 1;
    rows.forEach((r, j) => {
      const y = top + j * row + (j && rows[0].total ? 6 : 0), best = argmax(r.score);
      r.y = y;
      const shortName = r.name.length > cut ? r.name.slice(0, cut - 1) + "…" : r.name;
      root.append(svg("text", { x: left - 8, y: y + row / 2 + 4, "text-anchor": "end", css: { fill: r.total ? "var(--ink)" : "var(--soft)", "font-weight": r.total ? 640 : 400, "font-size": "12px" } }, shortName, svg("title", {}, r.name)));
      for (let i = 0; i < n; i++) root.append(svg("rect", { x: (left + i * cell).toFixed(2), y, width: Math.max(0.5, cell - (cell > 5 ? 1 : 0.3)).toFixed(2), height: row - 3, rx: cell > 12 ? 2 : 0, fill: paintOf(r, i), class: "cell" }));
      for (const i of r.tied) root.append(svg("rect", { x: (left + i * cell).toFixed(2), y: y + row - 6, width: Math.max(1, cell - (cell > 5 ? 1 : 0)).toFixed(2), height: 3, css: { fill: "var(--ink)" }, class: "tied" }));
      if (best >= 0) {
        root.append(svg("rect", { x: left + best * cell - 0.5, y: y - 0.5, width: Math.max(3, cell), height: row - 2, fill: "none", css: { stroke: "var(--ink)" }, "stroke-width": 2, rx: 2, class: "best" }));
        if (wide) root.append(svg("text", { x: width - 2, y: y + row / 2 + 4, "text-anchor": "end", css: { fill: "var(--soft)", "font-size": "12px" } }, score(r.score[best]) + " @ " + run.layers[best]));
      }
    });
    const bottom = rows[rows.length - 1].y + row;
    const step = layerTicks(run.layers[0], run.layers[n - 1], Math.max(2, Math.floor((width - left - right) / 60)));
    for (const t of step) { const i = run.layers.indexOf(t); if (i >= 0) root.append(svg("text", { x: left + (i + 0.5) * cell, y: bottom + 13, "text-anchor": "middle" }, t)); }
    root.append(svg("text", { x: width - right, y: bottom + 26, "text-anchor": "end" }, "layer →"));
    if (wide) root.append(svg("text", { x: width - 2, y: 12, "text-anchor": "end" }, "best @ layer"));
    for (const m of data.marks.filter((k) => k.model === run.model && (!k.readout || k.readout === block.readout))) {
      const i = run.layers.indexOf(m.layer);
      if (i < 0) continue;
      const x = left + (i + 0.5) * cell;
      root.append(svg("path", { d: `M${x - 5},4h10l-5,8z`, fill: color(run.color) }),
        svg("rect", { x: left + i * cell - 1, y: top - 4, width: cell + 1, height: bottom - top + 4, fill: "none", stroke: color(run.color), "stroke-width": 1.3, "stroke-dasharray": "3 2", rx: 3, class: "mark" }),
        tagBeside(m.kind + ", layer " + m.layer, x, width - right, color(run.color)));
    }
    const focus = root.appendChild(svg("g", {}));
    frame = { root, run, rows, left, cell, row, n, width, focus };
    root.addEventListener("pointermove", point);
    root.addEventListener("pointerdown", point);
    root.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") { at = null; set({ cursor: null }); follow(); } });
    root.addEventListener("keydown", step2d);
    root.addEventListener("blur", () => { at = null; set({ cursor: null }); follow(); });
    fillScale(rows.some((r) => r.tied.size), most, mid, up, down, low, high);
    $("heat-says").textContent = `${run.label}, read as ${readoutName(block.readout)}. ${rows.some((r) => r.tied.size) ? "A bar under a cell: that layer cannot be told from the best of its task. " : ""}An outline: the best layer.`;
    follow();
  }

  function fillScale(ties, most, mid, up, down, low, high) {
    const bar = el("i");
    const places = [-1, -0.75, -0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5, 0.75, 1];  // small gains are told apart, as in the cells
    const stops = state.shade === "gain" ? places.map((p) => `${mix(mid, p < 0 ? down : up, Math.sqrt(Math.abs(p)))} ${50 + 50 * p}%`) : [mix(low, low, 0), mix(high, high, 0)];
    bar.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
    const ends = state.shade === "gain" ? ["−" + most.toFixed(0), "+" + most.toFixed(0)] : ["lowest of the task", "highest"];
    scale.replaceChildren(el("span", {}, ends[0]), bar, el("span", {}, ends[1]), el("span", { class: "best" }), "best", ...(ties ? [el("span", { class: "mark", css: { "margin-left": "8px" } }), "tied with the best"] : []));
  }

  function point(event) {
    const box = frame.root.getBoundingClientRect(), unit = frame.width / box.width;
    const i = Math.floor(((event.clientX - box.left) * unit - frame.left) / frame.cell);
    const y = (event.clientY - box.top) * unit;
    let j = frame.rows.findIndex((r) => y >= r.y && y < r.y + frame.row);
    if (i < 0 || i >= frame.n || j < 0) return;
    move(i, j);
  }
  function step2d(event) {
    const d = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (!d) return;
    event.preventDefault();
    const now = at || { i: d[0] > 0 ? -1 : 0, j: 0 };
    move(Math.max(0, Math.min(frame.n - 1, now.i + d[0])), Math.max(0, Math.min(frame.rows.length - 1, now.j + d[1])));
    say(read.textContent);
  }
  function move(i, j) {
    at = { i, j };
    set({ cursor: position(frame.run.layers[i], frame.run.blocks) });
    follow();
  }
  function follow() {
    if (!frame || chart.stale) return;
    frame.focus.replaceChildren();
    if (state.cursor === null) { read.textContent = ""; return; }
    const { run, rows } = frame;
    const layer = state.axis === "layer" ? state.cursor : Math.round(state.cursor * run.blocks);
    const i = run.layers.indexOf(layer);
    if (i < 0) return;
    frame.focus.append(svg("path", { d: `M${frame.left + (i + 0.5) * frame.cell - 4},${rows[rows.length - 1].y + frame.row + 1}h8l-4,-5z`, css: { fill: "var(--ink)" } }));
    if (!at) { read.textContent = ""; return; }
    const r = rows[at.j];
    frame.focus.append(svg("rect", { x: frame.left + at.i * frame.cell - 1, y: r.y - 1, width: frame.cell + 1, height: frame.row - 1, fill: "none", css: { stroke: "var(--accent)" }, "stroke-width": 2.5, rx: 2 }));
    const interval = known(r.lo[at.i]) && r.lo[at.i] !== r.hi[at.i] ? ` [${signed(r.lo[at.i])}, ${signed(r.hi[at.i])}]` : "";
    read.replaceChildren(el("b", {}, r.name), ` · layer ${run.layers[at.i]} · `, el("b", { class: "score" }, score(r.score[at.i])), ` · ${signed(r.gain[at.i])}${interval} over the last layer${r.tied.has(at.i) ? " · tied with the best" : ""}`);
  }
  on(["evaluation"], () => readouts.refill(evaluation().readouts.map((r) => [r.readout, readoutName(r.readout)])));
  on(["evaluation", "readout", "shade", "theme"], () => { at = null; draw(); });
  on(["cursor", "axis"], follow);
}
