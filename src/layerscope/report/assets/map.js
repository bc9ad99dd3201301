// A map of texts to play through, layer by layer, and the true neighbors of a text.
const SPEED = 2.4;  // layers per second while playing
const still = matchMedia("(prefers-reduced-motion: reduce)");

function buildMaps() {
  if (!data.maps.length) return;
  const section = el("section", { id: "map", "aria-labelledby": "map-title" });
  $("maps").append(section);
  const body = el("div");
  section.append(el("h2", { id: "map-title" }, "Every " + noun(data.maps[0]) + " as a point"), body);
  if (!canInflate) { body.append(el("p", { class: "lede" }, "This browser is too old to draw the map.")); return; }
  const several = choice("Map of", "map", data.maps.map((m, i) => [String(i), m.label]), (value) => set({ map: Number(value) }));
  let held = null;
  async function open() {
    const map = data.maps[state.map];
    if (held) held.drop();
    held = null;
    body.replaceChildren(data.maps.length > 1 ? several : "", el("p", { class: "lede" }, map.note));
    section.dataset.ready = "yes";
    if (!map.readings.length) return;
    delete section.dataset.ready;
    const readings = await Promise.all(map.readings.map((r) => unpackReading(r, map.n)));
    state.reading = readings[readings.length - 1].name;
    state.coloring = (map.columns.find((c) => c.words && !c.name.startsWith("cluster")) || map.columns.find((c) => c.words) || { name: "" }).name;
    body.replaceChildren();
    held = mapView(body, map, readings, several);
    section.dataset.ready = "yes";
    performance.mark("layerscope-map");
  }
  open();
  on(["map"], open);
  on(["reading"], () => held && held.reread());
  on(["coloring", "theme"], () => held && held.recolor());
}
const noun = (map) => map.kind.replace(/s$/, "");
const used = (reading) => Math.max(0, reading.layers.indexOf(reading.at));
const count = (n) => n.toLocaleString("en-US");
const plainNumber = (v) => (Number.isInteger(v) ? String(v) : fmt(v));
// Search finds letters however they are typed: in capitals, with accents, in one sign or two.
const fold = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

function mapView(body, map, readings, several) {
  const n = map.n, one = noun(map), folded = map.texts ? map.texts.map(fold) : [];
  const textOf = (i, most) => (map.texts ? short(map.texts[i].trim() || "(blank)", most) : `${one} ${i + 1}`);
  const words = (i, most) => el("span", { class: "said", dir: "auto" }, textOf(i, most));
  const picture = (i) => {
    if (!map.pictures) return null;
    const across = Math.ceil(Math.sqrt(n));
    return el("span", { class: "thumb", css: { "background-image": `url(data:image/jpeg;base64,${map.pictures})`, "background-size": `${across * 100}%`, "background-position": `${across > 1 ? ((i % across) * 100) / (across - 1) : 0}% ${across > 1 ? (Math.floor(i / across) * 100) / (across - 1) : 0}%` } });
  };
  let reading = readings.find((r) => r.name === state.reading), time = used(reading);
  let picked = null, hover = null, query = "", group = null, colors = null, playing = null, moving = null;
  const at = new Float32Array(2 * n);
  const layer = () => Math.round(time);

  // --- what stands on the page
  const sampled = map.total > n ? `${count(n)} of ${count(map.total)} ${map.kind}, drawn at random` : `${count(n)} ${map.kind}`;
  const head = el("p", { class: "lede" }, `${map.about}: ${sampled}. A point is one ${one} at a layer of ${map.model}. Click a point for its nearest neighbors at that layer.`);
  const search = el("input", { type: "search", id: "map-search", placeholder: map.kind === "texts" ? "a word in your texts" : "a part of a name", autocomplete: "off", oninput: () => { query = fold(search.value.trim()); group = null; found(); legend(); draw(); } });
  const controls = el("div", { class: "row" }, several,
    readings.length > 1 ? segments("Read as", "reading", readings.map((r) => [r.name, r.name])) : null,
    choice("Color", "coloring", [...map.columns.map((c) => [c.name, c.name]), ["", "none"]]),
    map.texts ? el("div", { class: "field" }, el("label", { for: "map-search" }, "Find"), search) : null);
  const plot = el("div", { class: "plot" }), tip = el("div", { class: "tip", hidden: true });
  const field = pointCanvas(plot, "");
  plot.append(tip);
  const play = el("button", { type: "button", class: "plain play", onclick: () => (playing ? pause() : start()) }, "▶ Play");
  const slider = el("input", { type: "range", min: 0, max: reading.layers.length - 1, step: 1, "aria-label": "Layer", oninput: () => { pause(); go(Number(slider.value)); } });
  const where = el("output", { class: "where" });
  const trust = el("p", { class: "trust", role: "status" });
  const keys = el("ul", { class: "keys inks", "aria-label": "Colors" });
  const side = el("div", { class: "card side" });
  const strip = el("figure", { class: "card", hidden: true });
  body.append(head, controls, el("div", { class: "mapped" }, el("figure", { class: "card" }, plot, el("div", { class: "player" }, play, slider, where), trust, keys), side), strip);

  // --- where the points are
  function places(r, t) {
    const a = r.points[Math.floor(t)], b = r.points[Math.ceil(t)], share = t - Math.floor(t);
    if (share === 0) at.set(a); else for (let i = 0; i < 2 * n; i++) at[i] = a[i] + (b[i] - a[i]) * share;
  }
  function draw() {
    const near = picked === null ? [] : reading.of(layer(), picked);
    const matched = query && map.texts ? matches() : null, mine = picked === null ? null : new Set([picked, ...near]);
    const faded = matched ? (i) => !matched.has(i) : group !== null ? (i) => colors.of[i] !== group : mine ? (i) => !mine.has(i) : null;
    field.draw({ at, colors, faded, picked, near, hover });
  }
  const matches = () => new Set(folded.flatMap((text, i) => (text.includes(query) ? [i] : [])));
  // Points glide from where they are to where they belong; a reader who wants no motion gets none.
  function glide(done) {
    const from = at.slice(), begun = performance.now();
    if (moving) cancelAnimationFrame(moving);
    const step = (now) => {
      const share = still.matches ? 1 : Math.min(1, (now - begun) / 260), eased = share * (2 - share);
      places(reading, time);
      for (let i = 0; i < 2 * n; i++) at[i] = from[i] + (at[i] - from[i]) * eased;
      draw();
      moving = share < 1 ? requestAnimationFrame(step) : null;
      if (share >= 1 && done) done();
    };
    step(begun + (still.matches ? 260 : 0));
  }
  function go(to) { time = Math.max(0, Math.min(reading.layers.length - 1, to)); glide(); tell(); }
  function start() {
    if (time >= reading.layers.length - 1) time = 0;
    if (reading.layers.length < 2) return;
    let last = null, told = layer();
    play.textContent = "❚❚ Pause";
    const frame = (now) => {
      const passed = last === null ? 0 : Math.min(0.1, (now - last) / 1000);
      last = now;
      time = Math.min(reading.layers.length - 1, time + passed * SPEED);
      if (still.matches) places(reading, layer()); else places(reading, time);
      draw();
      if (layer() !== told) { told = layer(); tell(true); }
      if (time >= reading.layers.length - 1) { pause(); return; }
      playing = requestAnimationFrame(frame);
    };
    playing = requestAnimationFrame(frame);
  }
  function pause() {
    if (!playing) return;
    cancelAnimationFrame(playing);
    playing = null;
    play.textContent = "▶ Play";
    go(layer());
  }

  // --- what is said of them
  function tell(quick) {
    const k = layer(), number = reading.layers[k], role = number === reading.at ? ({ better: ", chosen", best: ", the best by score", baseline: readings.length > 1 ? ", used before" : "" }[reading.name] || "") : "";
    slider.max = reading.layers.length - 1;
    slider.disabled = reading.layers.length < 2;
    play.disabled = slider.disabled;
    slider.value = String(k);
    where.textContent = `layer ${number} of ${map.blocks}${role}`;
    slider.setAttribute("aria-valuetext", where.textContent);
    if (readings.length > 1) where.dataset.reading = reading.name;  // for paper, where the control is not
    field.canvas.setAttribute("aria-label", `Map of ${count(n)} ${map.kind} at layer ${number}, read as ${reading.name} (${reading.says}). Arrow keys move from point to point, Enter shows the neighbors of one, Escape lets go.`);
    trust.textContent = `Trustworthiness of this picture: ${reading.trust[k].toFixed(2)} (1 is best). Distances between groups mean nothing; a click gives the true neighbors.`
      + (reading.hidden.length ? ` Left out, with a trustworthiness below 0.9: layer ${ranges(reading.hidden)}.` : "");
    if (!quick) set({ cursor: map.depth ? number / map.blocks : number });
    panel(quick);
  }
  const item = (i, extra) => el("li", {}, el("button", { type: "button", "data-item": i, onclick: () => pick(i), onpointerenter: () => { hover = i; draw(); }, onpointerleave: () => { hover = null; draw(); } }, picture(i), words(i, 150), extra ? el("span", { class: "extra" }, extra) : null));
  // To the right of the map: the text that was picked and its neighbors; else what was found; else who stands alone.
  function panel(quick) {
    if (quick && picked === null) return;
    const focused = document.activeElement && side.contains(document.activeElement) ? document.activeElement.dataset.item : null;
    const k = layer(), number = reading.layers[k];
    if (picked !== null) {
      const close = el("button", { type: "button", class: "quiet", onclick: () => pick(null) }, "Let go");
      const near = [...reading.of(k, picked)];
      const stays = (j) => reading.layers.reduce((sum, _, l) => sum + (reading.of(l, picked).includes(j) ? 1 : 0), 0);
      side.replaceChildren(el("div", { class: "headed" }, el("h3", {}, "Picked"), close), el("p", { class: "picked" }, picture(picked), words(picked, 2001)), facts(picked),
        el("h3", {}, `Nearest at layer ${number}`), el("ol", { class: "items" }, near.map((j) => item(j, `${stays(j)} of ${plural(reading.layers.length, "layer")}`))));
    } else if (query && map.texts) {
      const some = [...matches()];
      side.replaceChildren(el("h3", {}, `${count(some.length)} ${some.length === 1 ? one : map.kind} with “${short(query, 40)}”`), el("ul", { class: "items" }, some.slice(0, 12).map((i) => item(i))));
    } else {
      const alone = loneliest(k);
      side.replaceChildren(el("h3", {}, "Outliers"), el("p", { class: "says" }, `At layer ${number}, these ${map.kind} are among the ${reading.k} nearest of the fewest others.`),
        el("ul", { class: "items" }, alone.map(([i, times]) => item(i, times ? `near ${times}` : "near none"))),
        el("p", { class: "says" }, "Click a point, or one of these, for its nearest neighbors."));
    }
    if (focused) { const again = side.querySelector(`[data-item="${focused}"]`) || side.querySelector("button"); if (again) again.focus(); }
    drawStrip();
  }
  const facts = (i) => el("p", { class: "says" }, map.columns.map((c) => `${c.name}: ${c.numbers ? plainNumber(c.numbers[i]) : c.words[c.at[i]] || "–"}`).join(" · "));
  function loneliest(k) {
    const named = new Uint16Array(n);
    for (let i = 0; i < n; i++) for (const j of reading.of(k, i)) named[j]++;
    const far = (i) => reading.points[k][2 * i] ** 2 + reading.points[k][2 * i + 1] ** 2;
    return [...named.keys()].sort((a, b) => named[a] - named[b] || far(b) - far(a)).slice(0, 6).map((i) => [i, named[i]]);
  }
  function found() { picked = null; panel(); if (query && map.texts) say(`${matches().size} found`); }
  function pick(i) {
    picked = i;
    hover = null;
    panel();
    draw();
    if (i === null) return;
    const near = [...reading.of(layer(), i)].slice(0, 3);
    say(`Picked: ${textOf(i, 80)}. ` + `Nearest at layer ${reading.layers[layer()]}: ${near.map((j) => textOf(j, 60)).join("; ")}`);
  }

  // Which of the present neighbors of a text are its neighbors at the other layers.
  function drawStrip() {
    const k = layer(), layers = reading.layers, who = picked;
    strip.hidden = who === null;
    if (strip.hidden) return;
    const near = [...reading.of(k, who)], row = 19, left = 118, top = 8, width = Math.max(260, strip.clientWidth - 34), cell = (width - left - 4) / layers.length;
    const height = top + near.length * row + 32;
    const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `Which of the neighbors at layer ${layers[k]} are neighbors at the other layers: ` + near.map((j) => `${textOf(j, 30)}: layers ${ranges(layers.filter((_, l) => reading.of(l, who).includes(j)))}`).join("; ") });
    near.forEach((j, y) => {
      root.append(svg("text", { x: left - 6, y: top + y * row + 13, "text-anchor": "end" }, map.kind === "texts" ? textOf(j, 17) : textOf(j, 200).slice(-17), svg("title", {}, textOf(j, 200))));
      layers.forEach((_, l) => root.append(svg("rect", { class: "cell", x: (left + l * cell).toFixed(2), y: top + y * row, width: Math.max(0.6, cell - (cell > 5 ? 1 : 0.2)).toFixed(2), height: row - 3, css: { fill: reading.of(l, who).includes(j) ? "var(--accent)" : "var(--grid)" } })));
    });
    root.append(svg("rect", { x: left + k * cell - 1, y: top - 3, width: Math.max(3, cell + 1), height: near.length * row + 3, fill: "none", css: { stroke: "var(--ink)" }, "stroke-width": 1.6, rx: 2 }));
    layers.forEach((number, l) => root.append(svg("text", { x: left + (l + 0.5) * cell, y: top + near.length * row + 13, "text-anchor": "middle" }, number)));
    root.append(svg("text", { x: width - 4, y: height - 3, "text-anchor": "end" }, "layer →"));
    root.addEventListener("click", (event) => { const box = root.getBoundingClientRect(); const l = Math.floor(((event.clientX - box.left) * (width / box.width) - left) / cell); if (l >= 0 && l < layers.length) { pause(); go(l); } });
    strip.replaceChildren(el("figcaption", {}, el("span", { class: "name" }, "Which neighbors stay"), el("span", { class: "where" }, reading.name), el("span", { class: "means" }, `Filled: among the ${reading.k} nearest of the picked ${one} at that layer, too.`)), el("div", { class: "plot" }, root));
  }

  function legend() {
    const ramp = colors.ramp;
    keys.replaceChildren(...(ramp ? [el("li", {}, plainNumber(ramp.low), el("span", { class: "ramp", css: { background: `linear-gradient(90deg, ${ramp.inks.join(", ")})` } }), plainNumber(ramp.high) + " (by rank)")] : []),
      ...colors.keys.map((key) => el("li", {}, el("button", { type: "button", "aria-pressed": String(group === key.group), onclick: () => { group = group === key.group ? null : key.group; picked = null; search.value = query = ""; legend(); panel(); draw(); } },
        el("span", { class: "dot", css: { background: colors.inks[key.group] } }), el("span", { dir: "auto" }, short(key.name, 40)), el("span", { class: "extra" }, count(key.count))))));
  }
  function recolor() {
    colors = coloring(map.columns.find((c) => c.name === state.coloring), n);
    group = null;
    legend();
    draw();
  }
  function reread() {
    const number = reading.layers[layer()], before = reading;
    reading = readings.find((r) => r.name === state.reading) || reading;
    if (reading === before) return;
    pause();
    const same = reading.layers.indexOf(number);
    time = number === before.at || same < 0 ? used(reading) : same;  // from what is used to what is used
    glide();
    tell();
  }

  // --- pointer and keys
  const reach = (event) => (event.pointerType === "touch" ? 24 : 13);
  function show(i) {
    hover = i;
    tip.hidden = i === null;
    if (i !== null) {
      const [x, y] = field.place(at, i), column = map.columns.find((c) => c.name === state.coloring);
      tip.replaceChildren(picture(i) || "", words(i, 400), column ? el("span", { class: "extra" }, `${column.name}: ${column.numbers ? plainNumber(column.numbers[i]) : column.words[column.at[i]] || "–"}`) : "");
      const wide = plot.clientWidth, right = x > wide / 2;
      tip.style.setProperty("left", right ? "auto" : x + 12 + "px");
      tip.style.setProperty("right", right ? wide - x + 12 + "px" : "auto");
      tip.style.setProperty("top", Math.max(0, y - 20) + "px");
    }
    draw();
  }
  const hit = (event) => { const box = field.canvas.getBoundingClientRect(); return field.hit(at, ((event.clientX - box.left) / box.width) * plot.clientWidth, ((event.clientY - box.top) / box.height) * parseFloat(field.canvas.style.height), reach(event)); };
  field.canvas.addEventListener("pointermove", (event) => { if (!playing) { const i = hit(event); if (i !== hover) show(i); field.canvas.style.cursor = i === null ? "default" : "pointer"; } });
  field.canvas.addEventListener("pointerleave", () => show(null));
  field.canvas.addEventListener("click", (event) => { pick(hit(event)); });
  field.canvas.addEventListener("keydown", (event) => {
    const d = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (event.key === "Escape") { show(null); pick(null); }
    if (event.key === "Enter" && hover !== null) { event.preventDefault(); pick(hover); }
    if (!d) return;
    event.preventDefault();
    show(hover === null ? (picked ?? 0) : field.next(at, hover, d[0], d[1]));
    say(textOf(hover, 120));
  });
  field.canvas.addEventListener("blur", () => show(null));

  const sized = new ResizeObserver(() => { field.resize(); draw(); drawStrip(); });
  places(reading, time);
  colors = coloring(map.columns.find((c) => c.name === state.coloring), n);
  field.resize();
  sized.observe(plot);
  legend();
  tell();
  set({ cursor: null });
  draw();
  return { reread, recolor, drop: () => { pause(); sized.disconnect(); } };
}
