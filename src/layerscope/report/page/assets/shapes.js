// What charts are drawn of: markers, line samples, bands, lines, marks and notes.
const SHAPES = {
  circle: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0z`,
  square: (r) => `M${-r * 0.9},${-r * 0.9}h${r * 1.8}v${r * 1.8}h${-r * 1.8}z`,
  triangle: (r) => `M0,${-r * 1.15}L${r * 1.1},${r * 0.85}H${-r * 1.1}z`,
  diamond: (r) => `M0,${-r * 1.3}L${r * 1.3},0L0,${r * 1.3}L${-r * 1.3},0z`,
  cross: (r) => `M${-r},${-r}L${r},${r}M${r},${-r}L${-r},${r}`,
};
function marker(shape, x, y, r, ink, hollow) {
  const cross = shape === "cross";
  return svg("path", {
    d: SHAPES[shape](r), transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`, stroke: cross || hollow ? ink : "var(--halo)",
    "stroke-width": cross || hollow ? 1.6 : 1, fill: cross ? "none" : hollow ? "var(--halo)" : ink,
  });
}
// A sample of a line, for legends and tooltips.
function swatch(series) {
  const ink = color(series.color);
  return svg("svg", { width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 29, y1: 6, y2: 6, stroke: ink, "stroke-width": series.thin ? 1.4 : 2.2, "stroke-dasharray": dashes(series) }),
    series.thin ? null : marker(series.marker, 15, 6, 3.4, ink));
}
const dashes = (series) => (series.thin ? "1.5 3" : series.dash || null);

function band(s, x, y) {
  const runs = [];
  let run = [];
  s.x.forEach((at, i) => {
    if (known(s.lo[i]) && known(s.hi[i])) run.push(i); else if (run.length) { runs.push(run); run = []; }
  });
  if (run.length) runs.push(run);
  const d = runs.map((r) => "M" + r.map((i) => x(s.x[i]).toFixed(1) + "," + y(s.hi[i]).toFixed(1)).join("L") +
    "L" + r.slice().reverse().map((i) => x(s.x[i]).toFixed(1) + "," + y(s.lo[i]).toFixed(1)).join("L") + "z").join("");
  return svg("path", { d, fill: color(s.color), opacity: 0.16, class: "band" });
}

function drawLine(root, s, x, y) {
  const ink = color(s.color);
  let d = "", pen = false;
  s.x.forEach((at, i) => {
    if (!known(s.y[i])) { pen = false; return; }
    d += (pen ? "L" : "M") + x(at).toFixed(1) + "," + y(s.y[i]).toFixed(1);
    pen = true;
  });
  root.append(svg("path", {
    d, fill: "none", stroke: ink, "stroke-width": s.thin ? 1.5 : 2, "stroke-linejoin": "round", "stroke-linecap": s.thin ? "round" : "butt",
    "stroke-dasharray": dashes(s), class: "line", "data-series": s.key,
  }));
  if (s.thin) return;
  const every = s.x.length <= 14 ? 1 : Math.ceil(s.x.length / 7);
  s.x.forEach((at, i) => { if (i % every === 0 && known(s.y[i])) root.append(marker(s.marker, x(at), y(s.y[i]), 3, ink)); });
}

// Layers that are pointed out. Those that lie side by side share one text, a number in each one's color.
function drawMarks(root, marks, x, box, wide) {
  const placed = marks.map((mark) => ({ ...mark, place: x(mark.x), ink: color(mark.color) }))
    .filter((m) => m.place >= box.left && m.place <= box.right).sort((a, b) => a.place - b.place);
  const groups = [];
  for (const m of placed) {
    root.append(svg("line", { x1: m.place, x2: m.place, y1: box.top - 3, y2: box.bottom, stroke: m.ink, "stroke-width": 1.2, "stroke-dasharray": "2 3", class: "mark" }),
      svg("path", { d: `M${m.place - 4.5},${box.top - 9}h9l-4.5,7z`, fill: m.ink }));
    const last = groups[groups.length - 1], words = (wide ? m.kind + (m.rule ? " (" + m.rule + ")" : "") + ": layer " : m.kind + " ");
    if (last && last.words === words && m.place - last.marks[0].place < (wide ? 140 : 70)) last.marks.push(m);
    else groups.push({ words, marks: [m] });
  }
  for (const { words, marks: together } of groups) {
    const toLeft = together[0].place > (box.left + box.right) / 2, at = toLeft ? together[0].place - 7 : together[together.length - 1].place + 7;
    const parts = together.flatMap((m, i) => [i ? svg("tspan", {}, ", ") : null, svg("tspan", { css: { fill: m.ink } }, String(m.layer))]);
    root.append(svg("text", { class: "tag", x: at, y: box.top - 3, "text-anchor": toLeft ? "end" : "start" }, svg("tspan", together.length > 1 ? {} : { css: { fill: together[0].ink } }, words), ...parts));
  }
}

// Texts beside points; one that would be printed over another moves up or down.
function drawNotes(root, notes, x, y, box) {
  const taken = [];
  for (const note of notes) {
    const toLeft = x(note.x) > box.left + 110, at = x(note.x) + (toLeft ? -9 : 9), wide = 6.6 * note.text.length, left = toLeft ? at - wide : at;
    const wanted = y(note.y) + (y(note.y) + 20 < box.bottom ? 16 : 4);
    const places = [0, 14, -14, 28, -28, 42, -42].map((by) => wanted + by).filter((place) => place > box.top + 8 && place < box.bottom - 1);
    const free = places.find((place) => !taken.some((t) => Math.abs(t.place - place) < 13 && t.left < left + wide && left < t.left + t.wide));
    const place = free === undefined ? wanted : free;
    taken.push({ place, left, wide });
    root.append(svg("text", { class: "tag note", x: at, y: place, "text-anchor": toLeft ? "end" : "start", css: { fill: color(note.color) } }, note.text));
  }
}
