// A choice as a picture: layers × readouts by score, and the score against what a text costs.
const KINDS = { "plain text": [6, "circle"], prompts: [0, "triangle"], heads: [1, "square"] };
const rowWords = (row) => (row.how === "head" ? "head on " + row.read : [row.read, row.how].filter(Boolean).join(", "));
const bestWords = (grid) => "not told from the best" + (grid.budget ? " within the budget" : "");
const three = (value) => (known(value) ? value.toFixed(3).replace("-", "−") : "–");

function buildChoosing(host, grid) {
  const charts = [heatOfChoice(host, grid), costsOfChoice(host, grid)];
  on(["theme"], () => charts.forEach((chart) => chart.draw()));
}

// One candidate in words: for the line under a chart and for screen readers.
function tellCandidate(grid, [r, i]) {
  const row = grid.rows[r], interval = known(row.lo[i]) && row.lo[i] !== row.hi[i] ? ` [${three(row.lo[i])}, ${three(row.hi[i])}]` : "";
  const is = (place) => place && place[0] === r && place[1] === i;
  const more = [is(grid.chosen) ? "chosen" : "", is(grid.today) ? "today" : "", row.tied.includes(i) ? "not told from the best" : "", row.open ? "" : "cannot be chosen"].filter(Boolean);
  const cost = row.cost?.[i] != null ? ` · ${row.cost[i].toFixed(2)} × today's computation` : "";
  return `layer ${grid.layers[i]} · ${rowWords(row)} · ${three(row.v[i])}${interval}${cost}${more.map((m) => " · " + m).join("")}`;
}

// The frame of both charts: a card with a title, a plot that is drawn when it is seen, a line that tells what is pointed at.
function choiceChart(host, name, says, minHeight, drawInto) {
  const plot = el("div", { class: "plot" }), keys = el("ul", { class: "keys" }), read = el("p", { class: "heat-read", "aria-live": "off" });
  const caption = el("figcaption", {}, el("span", { class: "name" }, name), el("span", { class: "where" }), el("span", { class: "means" }, says));
  host.append(el("figure", { class: "wide card" }, caption, plot, keys, read));
  plot.style.minHeight = minHeight + "px";
  const chart = { stale: true, visible: false, width: 0, plot, keys, draw, paint };
  chart.tell = (text, aloud) => { read.textContent = text; if (aloud) say(text); };
  pending.set(plot, chart);
  watcher.observe(plot);
  resizer.observe(plot);
  function draw() { chart.stale = true; if (chart.visible) paint(); }
  function paint() {
    chart.stale = false;
    chart.width = Math.round(plot.clientWidth);
    drawInto(chart, Math.max(240, chart.width));
    plot.style.minHeight = "";
    chart.tell("");
  }
  return chart;
}
const mark = (what, x, y, r) => marker(what === "chosen" ? "circle" : "diamond", x, y, r, "var(--ink)", true);
const markKey = (what, r) => svg("svg", { width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true" }, mark(what, 8, 8, r || 5));
function markKeys(grid) {
  return ["chosen", "today"].filter((what) => grid[what]).map((what) => {
    const [r, i] = grid[what], row = grid.rows[r];
    return el("li", {}, markKey(what), `${what}: layer ${grid.layers[i]}, ${rowWords(row)} (${three(row.v[i])})`);
  });
}

function heatOfChoice(host, grid) {
  const n = grid.layers.length, says = `Color: ${grid.unit}. Every row is a way to read a text.`;
  const all = grid.rows.flatMap((r) => r.v).filter(known), least = Math.min(...all), span = Math.max(...all) - least || 1;
  let at = null;
  return choiceChart(host, "Every layer under every readout", says, 60 + 22 * grid.rows.length, (chart, width) => {
    const narrow = width < 640, groupOf = (r) => (r.how === "head" ? "head" : r.read);
    const words = (r) => rowWords(r) + (r.open ? "" : " *");
    const left = narrow ? 0 : 14 + 6.3 * Math.max(...grid.rows.map((r) => words(r).length));
    const label = narrow ? 15 : 0, bar = 18, cell = (width - left - 2) / n;
    let y = 4;
    const tops = grid.rows.map((r, j) => { if (j && groupOf(r) !== groupOf(grid.rows[j - 1])) y += 7; const top = y + label; y = top + bar + 3; return top; });
    const bottom = y, height = bottom + 32;
    const name = `${grid.unit} of ${grid.rows.length} readouts at ${n} layers. Arrow keys move from cell to cell. Chosen: ${tellCandidate(grid, grid.chosen)}`;
    const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img", "aria-label": name });
    const [low, high] = ["--heat-low", "--heat-high"].map(themeColor);
    grid.rows.forEach((r, j) => {
      const where = narrow ? { x: 0, y: tops[j] - 4 } : { x: left - 8, y: tops[j] + bar / 2 + 4, "text-anchor": "end" };
      root.append(svg("text", { ...where, css: { fill: "var(--soft)", "font-size": "12px" } }, words(r)));
      for (let i = 0; i < n; i++) {
        const fill = known(r.v[i]) ? mix(low, high, (r.v[i] - least) / span) : "none";
        root.append(svg("rect", { x: (left + i * cell).toFixed(2), y: tops[j], width: Math.max(0.5, cell - (cell > 5 ? 1 : 0)).toFixed(2), height: bar, fill, class: "cell", opacity: r.open ? null : 0.45 }));
      }
      for (const i of r.tied) root.append(svg("rect", { x: (left + i * cell).toFixed(2), y: tops[j] + bar - 3, width: Math.max(1, cell - (cell > 5 ? 1 : 0)).toFixed(2), height: 3, css: { fill: "var(--ink)" }, class: "tied" }));
    });
    for (const t of layerTicks(grid.layers[0], grid.layers[n - 1], Math.max(2, Math.floor((width - left) / 60)))) {
      const i = grid.layers.indexOf(t);
      if (i >= 0) root.append(svg("text", { x: left + (i + 0.5) * cell, y: bottom + 12, "text-anchor": "middle" }, t));
    }
    root.append(svg("text", { x: width, y: bottom + 27, "text-anchor": "end" }, "layer →"));
    const centre = ([r, i]) => [left + (i + 0.5) * cell, tops[r] + bar / 2];
    for (const what of ["today", "chosen"]) if (grid[what]) root.append(fill(mark(what, ...centre(grid[what]), 6), { class: "mark", "data-mark": what }, []));
    const focus = root.appendChild(svg("g", {}));
    chart.plot.replaceChildren(root);
    const scale = el("i", { class: "ramp" });
    scale.style.background = `linear-gradient(90deg, ${mix(low, low, 0)}, ${mix(high, high, 0)})`;
    chart.keys.replaceChildren(...markKeys(grid), el("li", {}, three(least), scale, three(least + span)),
      ...(grid.rows.some((r) => r.tied.length) ? [el("li", {}, el("span", { class: "tiedkey" }), bestWords(grid))] : []),
      ...(grid.rows.every((r) => r.open) ? [] : [el("li", {}, "* cannot be chosen by this judge")]));
    const move = (i, j, aloud) => {
      at = [j, i];
      focus.replaceChildren(svg("rect", { x: left + i * cell - 1, y: tops[j] - 1, width: Math.max(4, cell + 1), height: bar + 2, fill: "none", css: { stroke: "var(--accent)" }, "stroke-width": 2.5, rx: 2 }));
      chart.tell(tellCandidate(grid, at), aloud);
    };
    const leave = () => { at = null; focus.replaceChildren(); chart.tell(""); };
    const point = (event) => {
      const box = root.getBoundingClientRect(), unit = width / box.width, py = (event.clientY - box.top) * unit;
      const i = Math.floor(((event.clientX - box.left) * unit - left) / cell), j = tops.findIndex((top) => py >= top - label && py < top + bar + 3);
      if (i >= 0 && i < n && j >= 0) move(i, j);
    };
    root.addEventListener("pointermove", point);
    root.addEventListener("pointerdown", point);
    root.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") leave(); });
    root.addEventListener("blur", leave);
    root.addEventListener("keydown", (event) => {
      const d = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
      if (event.key === "Escape") leave();
      if (!d) return;
      event.preventDefault();
      const [j, i] = at ? [at[0] + d[1], at[1] + d[0]] : grid.chosen;  // from where the reader looks first
      move(Math.max(0, Math.min(n - 1, i)), Math.max(0, Math.min(grid.rows.length - 1, j)), true);
    });
  });
}

function costsOfChoice(host, grid) {
  const points = grid.rows.flatMap((r, j) => r.v.map((v, i) => ({ j, i, v, cost: r.cost[i], row: r })).filter((p) => known(p.v) && known(p.cost)));
  const front = grid.front.map(([j, i]) => points.find((p) => p.j === j && p.i === i)).filter(Boolean);
  const kinds = Object.keys(KINDS).filter((k) => grid.rows.some((r) => r.kind === k));
  const says = "Every point is a layer under a readout. The line: of what may be chosen, what nothing beats at the same cost or less.";
  let at = null;
  return choiceChart(host, "What it costs", says, 340, (chart, width) => {
    const height = 340, box = { left: 46, right: width - 14, top: 18, bottom: height - 42 };
    const costs = points.map((p) => p.cost), x0 = Math.min(...costs) / 1.15, x1 = Math.max(...costs, grid.budget || 0) * 1.15;
    const values = points.map((p) => p.v), pad = (Math.max(...values) - Math.min(...values)) * 0.07 || 1;
    const y0 = Math.min(...values) - pad, y1 = Math.max(...values) + pad;
    const x = logarithmic(x0, x1, box.left, box.right), y = linear(y0, y1, box.bottom, box.top);
    const name = `${grid.unit} against cost per text, ${points.length} candidates. Arrow keys move along the ${front.length} that nothing beats at the same cost or less.`;
    const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img", "aria-label": name });
    for (const t of ticks(y0, y1, 5).filter((v) => v >= y0 && v <= y1)) root.append(svg("line", { class: "gridline", x1: box.left, x2: box.right, y1: y(t), y2: y(t) }), svg("text", { x: box.left - 7, y: y(t) + 4, "text-anchor": "end" }, tickText(t)));
    const numbers = [];  // a number stands where there is room for it; round ones first
    for (const t of [1, 0.1, 0.01, 10, 0.5, 2, 0.2, 0.05, 0.02, 5, 20].filter((v) => v >= x0 && v <= x1)) {
      root.append(svg("line", { class: "gridline", x1: x(t), x2: x(t), y1: box.top, y2: box.bottom }));
      if (numbers.some((other) => Math.abs(x(other) - x(t)) < 44)) continue;
      numbers.push(t);
      root.append(svg("text", { x: x(t), y: box.bottom + 16, "text-anchor": "middle" }, t + " ×"));
    }
    root.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
      svg("text", { x: box.right, y: height - 5, "text-anchor": "end" }, "cost per text, × today's computation →"), svg("text", { x: 4, y: 9 }, "↑ " + grid.unit));
    if (grid.budget) root.append(svg("line", { class: "rule", x1: x(grid.budget), x2: x(grid.budget), y1: box.top, y2: box.bottom, "stroke-dasharray": "4 3" }), tagBeside("budget", x(grid.budget), box.right, "var(--soft)"));
    for (const p of points) {
      const [ink, shape] = KINDS[p.row.kind], tied = p.row.tied.includes(p.i), node = marker(shape, x(p.cost), y(p.v), tied ? 3.4 : 2.6, color(ink));
      node.setAttribute("class", tied ? "candidate tied" : "candidate");
      node.setAttribute("opacity", tied ? 1 : p.row.open ? 0.45 : 0.18);
      if (tied) node.setAttribute("stroke", "var(--ink)"); else node.setAttribute("stroke", "none");
      root.append(node);
    }
    const steps = front.map((p, k) => (k ? `H${x(p.cost).toFixed(1)}V${y(p.v).toFixed(1)}` : `M${x(p.cost).toFixed(1)},${y(p.v).toFixed(1)}`)).join("");
    if (front.length) root.append(svg("path", { d: steps + "H" + box.right, fill: "none", css: { stroke: "var(--ink)" }, "stroke-width": 1.6, "stroke-linejoin": "round", class: "front" }));
    for (const what of ["today", "chosen"]) {
      const p = grid[what] && points.find((q) => q.j === grid[what][0] && q.i === grid[what][1]);
      if (!p) continue;
      const lo = p.row.lo[p.i], hi = p.row.hi[p.i], px = x(p.cost), py = y(p.v), late = px > box.right - 70;
      if (known(lo) && known(hi)) root.append(svg("line", { x1: px, x2: px, y1: Math.min(box.bottom, y(lo)), y2: Math.max(box.top, y(hi)), css: { stroke: "var(--ink)" }, "stroke-width": 1.4 }));
      root.append(fill(mark(what, px, py, 6), { class: "mark", "data-mark": what }, []),
        svg("text", { class: "value", x: px + (late ? -11 : 11), y: py + 4, "text-anchor": late ? "end" : "start", css: { fill: "var(--ink)" } }, what));
    }
    const focus = root.appendChild(svg("g", {}));
    chart.plot.replaceChildren(root);
    chart.keys.replaceChildren(...markKeys(grid),
      ...kinds.map((k) => el("li", {}, svg("svg", { width: 14, height: 14, viewBox: "0 0 14 14", "aria-hidden": "true" }, marker(KINDS[k][1], 7, 7, 4, color(KINDS[k][0]))), k)),
      ...(points.some((p) => p.row.tied.includes(p.i)) ? [el("li", {}, svg("svg", { width: 14, height: 14, viewBox: "0 0 14 14", "aria-hidden": "true" }, svg("circle", { cx: 7, cy: 7, r: 4, fill: "none", css: { stroke: "var(--ink)" }, "stroke-width": 1.4 })), "outlined: " + bestWords(grid))] : []));
    const show = (p, aloud) => {
      at = p;
      focus.replaceChildren(svg("circle", { cx: x(p.cost), cy: y(p.v), r: 8, fill: "none", css: { stroke: "var(--accent)" }, "stroke-width": 2.5 }));
      chart.tell(tellCandidate(grid, [p.j, p.i]), aloud);
    };
    const leave = () => { at = null; focus.replaceChildren(); chart.tell(""); };
    const point = (event) => {
      const frame = root.getBoundingClientRect(), unit = width / frame.width, px = (event.clientX - frame.left) * unit, py = (event.clientY - frame.top) * unit;
      let best = null;
      for (const p of points) { const gap = Math.hypot(x(p.cost) - px, y(p.v) - py); if (!best || gap < best.gap) best = { gap, p }; }
      if (best && best.gap < 40) show(best.p); else leave();
    };
    root.addEventListener("pointermove", point);
    root.addEventListener("pointerdown", point);
    root.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") leave(); });
    root.addEventListener("blur", leave);
    root.addEventListener("keydown", (event) => {
      const d = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (event.key === "Escape") leave();
      if (!d || !front.length) return;
      event.preventDefault();
      const now = at ? front.indexOf(at) : -1;
      show(front[now < 0 ? (d > 0 ? 0 : front.length - 1) : Math.max(0, Math.min(front.length - 1, now + d))], true);
    });
  });
}
