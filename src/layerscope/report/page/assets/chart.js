// A line chart with intervals, marks, a crosshair that all charts share, and arrow keys.
const pending = new Map();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = pending.get(entry.target);
    if (!chart) continue;
    chart.visible = entry.isIntersecting;
    if (chart.visible && chart.stale) chart.paint();
  }
}, { rootMargin: "300px" });
const resizer = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const chart = pending.get(entry.target);
    const width = Math.round(entry.contentRect.width);
    if (chart && width && width !== chart.width) chart.draw();  // one that was drawn while it had no width, too
  }
});

let owner = null;  // the chart with the tooltip: there is never a second one

// options: name, unit, means, height, wide, log, legend, series(), marks(), notes(), text(value)
function lineChart(host, options) {
  const where = el("span", { class: "where" });
  const means = el("span", { class: "means" });
  const plot = el("div", { class: "plot" });
  const heading = el("span", { class: "name" }, options.name, el("span", { class: "unit" }, options.unit || ""));
  const figure = el("figure", { class: (options.wide ? "wide " : "") + "card" }, el("figcaption", {}, heading, where, means), plot);
  const keys = el("ul", { class: "keys", hidden: true });
  plot.style.minHeight = (options.height || 190) + "px";
  figure.append(keys);
  host.append(figure);
  const chart = { figure, heading, width: 0, stale: true, visible: false, series: [], draw, paint, follow, drop };
  const text = options.text || fmt;
  let frame = null;
  const own = () => owner === chart;
  const release = () => { if (own()) { owner = null; set({ cursor: null }); follow(); } };
  function take() {
    const before = owner;
    owner = chart;
    if (before && before !== chart) before.follow();
  }
  pending.set(plot, chart);
  watcher.observe(plot);
  resizer.observe(plot);

  function drop() { watcher.unobserve(plot); resizer.unobserve(plot); pending.delete(plot); figure.remove(); if (own()) owner = null; }
  function draw() { chart.stale = true; if (chart.visible) paint(); }

  function paint() {
    chart.stale = false;
    const width = Math.max(240, Math.round(plot.clientWidth)), height = options.height || 190;
    chart.width = Math.round(plot.clientWidth);
    const series = (chart.series = options.series().filter((s) => s.y.some(known)));
    means.textContent = options.means ? options.means() : "";
    const label = options.name + ", " + plural(series.length, "line") + ". Arrow keys move along the layers.";
    const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img", "aria-label": label });
    plot.replaceChildren(root);
    frame = null;
    if (!series.length) {
      root.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "nothing to show with these switches"));
      return;
    }
    const xs = distinct(series.flatMap((s) => s.x)).sort((a, b) => a - b);
    const values = series.flatMap((s) => [...s.y, ...(s.lo || []), ...(s.hi || [])]).filter(known);
    let low = Math.min(...values), high = Math.max(...values);
    const useLog = options.log && low > 0;
    if (useLog) { low /= 1.15; high *= 1.15; }
    else { const pad = (high - low) * 0.07 || Math.abs(high) * 0.05 || 1; low -= pad; high += pad; }
    const ends = options.wide && width > 560;
    const right = ends ? Math.min(width * 0.3, 12 + 7.1 * Math.max(...series.map((s) => s.name.length))) : 12;
    const yTicks = useLog ? logTicks(low, high) : ticks(low, high, height > 220 ? 5 : 4).filter((t) => t >= low && t <= high);
    const left = 12 + 6.2 * Math.max(...yTicks.map((t) => tickText(t).length));
    const box = { left, right: width - right, top: 16, bottom: height - 30 };
    const x = linear(xs[0], xs[xs.length - 1], box.left + 5, box.right - 5);
    const y = (useLog ? logarithmic : linear)(low, high, box.bottom, box.top);
    for (const t of yTicks) {
      root.append(svg("line", { class: "gridline", x1: box.left, x2: box.right, y1: y(t), y2: y(t) }),
        svg("text", { x: box.left - 7, y: y(t) + 4, "text-anchor": "end" }, tickText(t)));
    }
    const across = Math.max(2, Math.floor((box.right - box.left) / 70));
    const xTicks = state.axis === "layer" ? layerTicks(xs[0], xs[xs.length - 1], across) : ticks(0, 1, Math.min(across, 5));
    for (const t of xTicks) root.append(svg("text", { x: x(t), y: box.bottom + 15, "text-anchor": "middle" }, tickText(t)));
    root.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
      svg("text", { x: box.right, y: height - 2, "text-anchor": "end" }, state.axis === "layer" ? "layer →" : "depth (layer / blocks) →"));
    for (const s of series) if (s.lo && !s.thin) root.append(band(s, x, y));
    if (options.marks) drawMarks(root, options.marks(), x, box, ends);
    for (const s of series.slice().reverse()) drawLine(root, s, x, y);
    if (options.notes) drawNotes(root, options.notes(), x, y, box, series);
    if (ends) {
      const wanted = series.map((s) => y(lastKnown(s.y)));
      const places = spread(wanted, 14, box.top, box.bottom);
      series.forEach((s, i) => root.append(svg("text", { class: "end", x: box.right + 6, y: places[i] + 4, css: { fill: color(s.color) } }, s.name)));
    }
    keys.hidden = !(options.wide || options.legend) || ends;
    keys.replaceChildren(...(keys.hidden ? [] : series.map((s) => el("li", {}, swatch(s), s.name))));
    frame = { root, x, y, xs, box, layer: root.appendChild(svg("g", { class: "cursor" })) };
    root.addEventListener("pointermove", (event) => point(event));
    root.addEventListener("pointerdown", (event) => point(event));
    root.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") release(); });
    root.addEventListener("keydown", step);
    root.addEventListener("blur", release);
    follow();
  }

  function point(event) {
    const box = frame.root.getBoundingClientRect();
    const at = frame.x.invert(((event.clientX - box.left) / box.width) * (frame.root.viewBox.baseVal.width));
    take();
    const near = nearest(frame.xs, at);
    if (near === state.cursor) follow(); else set({ cursor: near });
  }

  function step(event) {
    const move = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    const xs = frame.xs;
    if (event.key === "Escape") { release(); return; }
    if (!move && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    const now = state.cursor === null ? -1 : xs.indexOf(nearest(xs, state.cursor));
    let to = event.key === "Home" ? 0 : event.key === "End" ? xs.length - 1 : now < 0 ? (move > 0 ? 0 : xs.length - 1) : now + move;
    to = Math.min(xs.length - 1, Math.max(0, to));
    take();
    set({ cursor: xs[to] });
    say(options.name + ", " + whereText(xs[to]) + ": " + read(xs[to]).map((r) => r.series.name + " " + text(r.value)).join("; "));
  }

  // The values of all lines at one place of the axis.
  function read(cursor) {
    const out = [];
    for (const s of chart.series) {
      const i = indexAt(s, cursor);
      if (i >= 0 && known(s.y[i])) out.push({ series: s, i, value: s.y[i], lo: s.lo && s.lo[i], hi: s.hi && s.hi[i] });
    }
    return out;
  }

  function follow() {
    if (!frame || chart.stale) return;
    const { layer, x, y, box } = frame;
    layer.replaceChildren();
    const old = plot.querySelector(".tip");
    if (old) old.remove();
    const cursor = state.cursor;
    where.textContent = cursor === null ? "" : whereText(cursor);
    if (cursor === null) { if (own()) owner = null; return; }
    const values = read(cursor);
    const place = x(cursor);
    if (place < box.left || place > box.right) return;
    layer.append(svg("line", { class: "rule", x1: place, x2: place, y1: box.top, y2: box.bottom }));
    const toLeft = place > (box.left + box.right) / 2;
    const said = own() ? [] : values.filter((v) => !v.series.thin || values.length <= 4);
    const labels = spread(said.map((v) => y(v.value)), 13, box.top + 2, box.bottom - 2);
    values.forEach((v) => {
      const ink = color(v.series.color), i = said.indexOf(v);
      layer.append(marker(v.series.marker, x(v.series.x[v.i]), y(v.value), 4, ink, v.series.thin));
      if (i >= 0) {
        layer.append(svg("text", { class: "value", x: place + (toLeft ? -9 : 9), y: labels[i] + 4, "text-anchor": toLeft ? "end" : "start", css: { fill: ink } }, text(v.value)));
      }
    });
    if (own() && values.length) plot.append(tip(values, cursor, toLeft, place, box));
  }

  function tip(values, cursor, toLeft, place, box) {
    const rows = values.map((v) => el("tr", {}, el("td", {}, swatch(v.series)), el("td", { class: "who" }, v.series.name), el("td", {}, layerOf(v)),
      el("td", { class: "v" }, text(v.value)), el("td", {}, known(v.lo) && known(v.hi) ? "[" + text(v.lo) + ", " + text(v.hi) + "]" : "")));
    const node = el("div", { class: "tip" }, el("p", {}, whereText(cursor)), el("table", {}, el("tbody", {}, rows)));
    if (!options.wide) {  // below the lines, so that none is covered
      const around = plot.getBoundingClientRect();
      node.classList.add("below");
      node.style.setProperty(around.left + around.width / 2 > document.documentElement.clientWidth / 2 ? "right" : "left", "-8px");
      return node;
    }
    const scale = plot.clientWidth / frame.root.viewBox.baseVal.width;
    node.style.setProperty(toLeft ? "right" : "left", (toLeft ? plot.clientWidth - place * scale + 12 : place * scale + 12) + "px");
    return node;
  }
  const layerOf = (v) => (state.axis === "depth" && v.series.layers ? "layer " + v.series.layers[v.i] : "");
  return chart;
}

function nearest(values, at) {
  let best = values[0];
  for (const v of values) if (Math.abs(v - at) < Math.abs(best - at)) best = v;
  return best;
}
function indexAt(series, cursor) {
  if (state.axis === "layer") return series.x.indexOf(cursor);
  const gap = series.x.length > 1 ? Math.abs(series.x[series.x.length - 1] - series.x[0]) / (series.x.length - 1) : 1;
  const near = nearest(series.x, cursor);
  return Math.abs(near - cursor) <= gap * 0.51 ? series.x.indexOf(near) : -1;
}
const lastKnown = (values) => values.filter(known).slice(-1)[0];
