// What a map is made of: packed points and neighbors, their inks, and a canvas that draws thousands of them in a frame.
async function unpackReading(reading, n) {
  const k = reading.k, points = new Int16Array((await inflate(reading.points)).buffer), near = new Uint16Array((await inflate(reading.near)).buffer);
  const ofLayer = (_, layer) => Float32Array.from(points.subarray(2 * n * layer, 2 * n * (layer + 1)), (v) => v / 32767);
  const of = (layer, i) => near.subarray((layer * n + i) * k, (layer * n + i + 1) * k);
  return { ...reading, points: reading.layers.map(ofLayer), of };
}

// Ten colors that can be told apart, on white and on black; what is rarer shares the gray.
const INKS = { light: ["#7a4bc4", "#c2254d", "#5f7d00", "#00808a"], dark: ["#b79aef", "#f2849b", "#b5cf5a", "#5fd0d8"] };
const inkOf = (place) => (place < 5 ? color([0, 1, 2, 3, 5][place]) : place < 9 ? INKS[dark() ? "dark" : "light"][place - 5] : color(4));
const MOST_INKS = 10, RAMP = 12;

// How points are colored: an ink per group, the group of every point, and the legend.
function coloring(column, n) {
  if (!column) return { of: new Uint8Array(n), inks: [color(0)], keys: [] };
  if (column.numbers) {
    const [low, high] = ["--heat-low", "--heat-high"].map(themeColor), gray = mix(themeColor("--faint"), low, 0.3);
    const sorted = column.numbers.filter(known).sort((a, b) => a - b);
    const rank = new Map(sorted.map((v, i) => [v, i / Math.max(1, sorted.length - 1)]));  // by rank: one giant would hide the rest
    const inks = Array.from({ length: RAMP }, (_, i) => mix(low, high, 0.15 + (0.85 * i) / (RAMP - 1)));
    return {
      of: column.numbers.map((v) => (known(v) ? Math.min(RAMP - 1, Math.floor(rank.get(v) * RAMP)) : RAMP)), inks: [...inks, gray], keys: [],
      ramp: { low: sorted[0], high: sorted[sorted.length - 1], inks },
    };
  }
  const counts = column.words.map(() => 0), shown = column.words.length > MOST_INKS ? MOST_INKS - 1 : column.words.length;
  for (const at of column.at) counts[at]++;
  const keys = column.words.slice(0, shown).map((word, i) => ({ name: word || "(empty)", count: counts[i], group: i }));
  const rest = counts.slice(shown).reduce((a, b) => a + b, 0);
  if (rest) keys.push({ name: `${column.words.length - shown} others`, count: rest, group: shown });
  return { of: column.at.map((at) => Math.min(at, shown)), inks: [...Array.from({ length: shown }, (_, i) => inkOf(i)), "rgb(140,145,155)"], keys };
}

// A dot is drawn once per color and then copied: two thousand copies take a few milliseconds.
function dots(inks, radius, scale) {
  return inks.map((ink) => {
    const size = Math.ceil(2 * (radius + 1) * scale), sheet = document.createElement("canvas");
    sheet.width = sheet.height = size;
    const pen = sheet.getContext("2d");
    pen.scale(scale, scale);
    pen.beginPath();
    pen.arc(radius + 1, radius + 1, radius, 0, 7);
    pen.fillStyle = ink;
    pen.fill();
    pen.lineWidth = 0.7;
    pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--halo");
    pen.stroke();
    return sheet;
  });
}

// The canvas. `view` has: at (positions), colors, faded(i), picked, near, hover.
function pointCanvas(host, label) {
  const canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": label });
  host.append(canvas);
  const pen = canvas.getContext("2d");
  let width = 0, height = 0, scale = 1, sheets = null, sheetKey = "";
  const MARGIN = 14;
  const side = () => Math.min(width, height) / 2 - MARGIN;  // the same both ways: a distance is a distance
  const place = (at, i) => [width / 2 + at[2 * i] * side(), height / 2 - at[2 * i + 1] * side()];
  function resize() {
    width = Math.max(200, host.clientWidth);
    height = Math.round(Math.max(260, Math.min(560, width * 0.78)));
    scale = Math.min(2, window.devicePixelRatio || 1);
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = height + "px";
  }
  function draw(view) {
    const n = view.at.length / 2, radius = n > 1200 ? 2.3 : n > 400 ? 3 : 4;
    const key = view.colors.inks.join() + radius + scale + dark();
    if (key !== sheetKey) { sheets = dots(view.colors.inks, radius, scale); sheetKey = key; }
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const of = view.colors.of, half = radius + 1, size = 2 * half;
    for (const pass of view.faded ? [true, false] : [false]) {  // what is pointed out lies above the rest
      pen.globalAlpha = pass ? 0.2 : 0.86;
      for (let i = 0; i < n; i++) {
        if (view.faded && view.faded(i) !== pass) continue;
        const [x, y] = place(view.at, i);
        pen.drawImage(sheets[of[i]], x - half, y - half, size, size);
      }
    }
    pen.globalAlpha = 1;
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink");
    const ring = (i, r, wide) => { const [x, y] = place(view.at, i); pen.lineWidth = wide; pen.strokeStyle = ink; pen.beginPath(); pen.arc(x, y, r, 0, 7); pen.stroke(); };
    if (view.picked !== null) {
      const [x, y] = place(view.at, view.picked);
      pen.strokeStyle = ink;
      pen.lineWidth = 0.8;
      pen.globalAlpha = 0.45;
      for (const j of view.near) { const [a, b] = place(view.at, j); pen.beginPath(); pen.moveTo(x, y); pen.lineTo(a, b); pen.stroke(); }
      pen.globalAlpha = 1;
      for (const j of view.near) ring(j, radius + 1.5, 1.2);
      ring(view.picked, radius + 4, 2.2);
    }
    if (view.hover !== null) ring(view.hover, radius + 2.5, 1.6);
  }
  // The point nearest to a place on the canvas, if one is within reach.
  function hit(at, x, y, reach) {
    let best = null, gap = reach * reach;
    for (let i = 0; i < at.length / 2; i++) {
      const [a, b] = place(at, i), d = (a - x) ** 2 + (b - y) ** 2;
      if (d < gap) { gap = d; best = i; }
    }
    return best;
  }
  // From a point to the next in a direction: near, and not too far aside.
  function next(at, from, dx, dy) {
    const [x, y] = place(at, from);
    let best = from, cost = Infinity;
    for (let i = 0; i < at.length / 2; i++) {
      const [a, b] = place(at, i), ahead = (a - x) * dx + (b - y) * dy, aside = Math.abs((a - x) * dy - (b - y) * dx);
      if (ahead > 0.5 && ahead + 2.5 * aside < cost) { cost = ahead + 2.5 * aside; best = i; }
    }
    return best;
  }
  return { canvas, draw, resize, hit, next, place };
}
