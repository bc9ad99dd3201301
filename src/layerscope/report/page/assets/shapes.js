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

// The curves' places (in pixels) at one horizontal place.
function curvesAt(series, x, y, at) {
  const out = [];
  for (const s of series) {
    for (let i = 1; i < s.x.length; i++) {
      const a = x(s.x[i - 1]), b = x(s.x[i]);
      if (!known(s.y[i - 1]) || !known(s.y[i]) || at < a || at > b) continue;
      out.push(y(s.y[i - 1]) + ((at - a) / (b - a || 1)) * (y(s.y[i]) - y(s.y[i - 1])));
    }
  }
  return out;
}

// Texts beside points, where neither another text nor a curve runs through them if there is such a place.
function drawNotes(root, notes, x, y, box, series) {
  const taken = [];
  for (const note of notes) {
    const wide = 6.6 * note.text.length, wanted = y(note.y) + (y(note.y) + 20 < box.bottom ? 16 : 4), places = [];
    for (const toLeft of x(note.x) > box.left + 110 ? [true, false] : [false, true]) {
      const at = x(note.x) + (toLeft ? -9 : 9), left = toLeft ? at - wide : at;
      if (left < box.left || left + wide > box.right + 8) continue;
      const lines = [0, 0.25, 0.5, 0.75, 1].flatMap((share) => curvesAt(series, x, y, left + share * wide));
      for (const by of [0, -28, 14, -14, 28, -42, 42]) {
        const place = wanted + by;
        if (place < box.top + 8 || place > box.bottom - 1) continue;
        const texts = taken.some((t) => Math.abs(t.place - place) < 13 && t.left < left + wide && left < t.left + t.wide);
        const gap = Math.min(14, ...lines.map((line) => Math.abs(line - (place - 4))));  // 14 pixels are clear of any line
        places.push({ at, left, toLeft, place, cost: (texts ? 100 : 0) + (14 - gap) * 3 + Math.abs(by) / 14 });
      }
    }
    const best = places.sort((a, b) => a.cost - b.cost)[0] || { at: x(note.x) + 9, left: x(note.x) + 9, toLeft: false, place: wanted };
    taken.push({ place: best.place, left: best.left, wide });
    root.append(svg("text", { class: "tag note", x: best.at, y: best.place, "text-anchor": best.toLeft ? "end" : "start", css: { fill: color(note.color) } }, note.text));
  }
}
