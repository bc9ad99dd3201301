// The same numbers as tables: sortable, and downloadable as they stand.
const word = (text) => ({ text, sort: text, csv: text, word: true });
const cellOf = (value, form) => ({ text: form(value), sort: known(value) ? value : -Infinity, csv: value });
const metricTitle = (name, sink) => data.metrics.find((m) => m.name === name).title + (sink === "drop" ? ", sink dropped" : "");
const layerCell = (k) => ({ text: String(k), sort: k, csv: k });

const TABLES = {
  metrics: {
    title: "Metrics by layer",
    runs: () => data.curves,
    make(run) {
      const part = run.parts[state.part] || Object.values(run.parts)[0];
      const columns = [];
      for (const metric of data.metrics.filter(inSet)) {
        for (const sink of ["keep", "drop"]) {
          if (state.sink === "keep" && sink === "drop") continue;
          const held = part.series.filter((s) => s.metric === metric.name && s.sink === sink);
          if (state.sink === "drop" && sink === "keep" && part.series.some((s) => s.metric === metric.name && s.sink === "drop")) continue;
          const found = held.find((s) => s.norm === state.norm) || held.find((s) => s.norm === "raw") || held[0];
          if (found) columns.push({ name: metricTitle(metric.name, sink) + (found.norm === "raw" ? "" : " (" + found.norm + ")"), found });
        }
      }
      const mark = data.marks.find((m) => m.model === run.model);
      return {
        head: ["layer", "site", ...columns.map((c) => c.name)],
        rows: part.layer.map((k, i) => ({ marked: mark && mark.layer === k, cells: [layerCell(k), word(part.sites[i]), ...columns.map((c) => cellOf(c.found.v[i], fmt))] })),
        file: run.label + "-metrics",
      };
    },
  },
  intervals: {
    title: "Metrics with intervals",
    runs: () => data.curves,
    make(run) {
      const rows = [];
      for (const part of Object.values(run.parts)) for (const s of part.series) s.v.forEach((_, i) => rows.push({ cells: [
        layerCell(part.layer[i]), word(part.sites[i]), word(s.metric), word(s.norm), word(s.sink),
        ...data.values.map(([, short, whole]) => cellOf(s[short] && s[short][i], whole ? (n) => (known(n) ? String(n) : "–") : fmt))] }));
      return { head: ["layer", "site", "metric", "normalization", "sink", ...data.values.map(([name]) => name)], rows, file: run.label + "-intervals" };
    },
  },
  best: {
    title: "Best layer of each task",
    runs: () => data.scores,
    make(run) {
      const rows = [];
      for (const block of run.readouts) block.tasks.forEach((t, j) => {
        const best = argmax(block.score[j]);
        if (best < 0) return;
        const last = lastKnown(block.score[j]);
        rows.push({ cells: [word(run.tasks[t].name), word(block.readout), cellOf(last, score), cellOf(block.score[j][best], score), layerCell(run.layers[best]),
          cellOf(block.gain[j][best], signed), cellOf(block.lo[j][best], signed), cellOf(block.hi[j][best], signed), word(ranges(block.tied[j].map((i) => run.layers[i])))] });
      });
      return { head: ["task", "readout", "last", "best", "layer", "gain", ...data.interval, "tied layers"], rows, file: run.label + "-best" };
    },
  },
  scores: {
    title: "Scores by layer",
    runs: () => data.scores,
    make(run) {
      const block = readoutOf(run, state.readout) || run.readouts[0];
      const mark = data.marks.find((m) => m.model === run.model);
      return {
        head: ["layer", ...block.tasks.map((t) => run.tasks[t].name)],
        rows: run.layers.map((k, i) => ({ marked: mark && mark.layer === k, cells: [layerCell(k), ...block.tasks.map((_, j) => cellOf(block.score[j][i], score))] })),
        file: run.label + "-scores-" + block.readout.replaceAll("/", "-"),
      };
    },
  },
  maps: {
    title: "Map by layer",
    runs: () => data.maps,
    make(map) {
      const cells = (r) => r.layers.map((k, i) => ({ cells: [word(r.name), layerCell(k), ...["trust", "kept", "changed"].map((name) => cellOf(r[name][i], fmt))] }));
      return { head: ["reading", "layer", "trustworthiness", "neighbors kept on the map", "neighborhood change"], rows: map.readings.flatMap(cells), file: map.label + "-map" };
    },
  },
};
const MOST_ROWS = 400;
for (const title of distinct(data.blocks.flatMap((b) => b.tables.map((t) => t.title)))) {
  TABLES["block: " + title] = {
    title,
    runs: () => data.blocks.flatMap((b) => b.tables.filter((t) => t.title === title).map((table) => ({ label: b.label, table }))),
    make({ label, table }) {
      const words = table.columns.map((column) => column.some((value) => typeof value === "string"));
      const forms = table.columns.map((column) => (column.every((value) => !known(value) || Number.isInteger(value)) ? (value) => (known(value) ? String(value) : "–") : fmt));
      const rows = (table.columns[0] || []).map((_, i) => ({ cells: table.columns.map((column, j) => (words[j] ? word(column[i] || "") : cellOf(column[i], forms[j]))) }));
      return { head: table.head, rows, file: label + "-" + title };
    },
  };
}

function buildTables() {
  const kinds = Object.entries(TABLES).filter(([, t]) => t.runs().length);
  if (!kinds.length) { $("tables").hidden = true; return; }
  state.table = kinds[0][0];
  const runs = choice("Run", "tableRun", [], (value) => set({ tableRun: Number(value) }));
  const refillRuns = () => runs.refill(TABLES[state.table].runs().map((r, i) => [String(i), r.label]));
  let made = null, sort = null, all = false;
  const save = el("button", { type: "button", class: "plain", id: "csv", onclick: () => download(made.file.replace(/[^\w.-]+/g, "-") + ".csv", [made.head, ...ordered().map((r) => r.cells.map((c) => c.csv))]) }, "Download CSV");
  $("table-controls").append(choice("Table", "table", kinds.map(([name, t]) => [name, t.title]), (value) => { set({ table: value, tableRun: 0 }); }), runs, save);
  function ordered() {
    if (!sort) return made.rows;
    const way = sort.down ? -1 : 1;
    return made.rows.slice().sort((a, b) => { const x = a.cells[sort.at].sort, y = b.cells[sort.at].sort; return (x < y ? -1 : x > y ? 1 : 0) * way; });
  }
  function paint() {
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.at : null;
    const rows = ordered();
    const head = made.head.map((name, i) => el("th", { scope: "col", class: made.rows[0] && made.rows[0].cells[i].word ? "w" : null, "aria-sort": sort && sort.at === i ? (sort.down ? "descending" : "ascending") : null },
      el("button", { type: "button", "data-at": i, onclick: () => { sort = { at: i, down: sort && sort.at === i ? !sort.down : false }; paint(); } }, name)));
    const body = rows.slice(0, all ? rows.length : MOST_ROWS).map((r) => el("tr", { class: r.marked ? "marked" : null }, r.cells.map((c) => el("td", { class: c.word ? "w" : null }, c.text))));
    $("table").replaceChildren(el("table", { "aria-label": TABLES[state.table].title }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
    if (rows.length > MOST_ROWS && !all) $("table").append(el("button", { type: "button", class: "plain", css: { margin: "10px" }, onclick: () => { all = true; paint(); } }, `Show all ${rows.length} rows`));
    if (focused !== null && focused !== undefined) { const again = $("table").querySelector(`[data-at="${focused}"]`); if (again) again.focus(); }
  }
  function remake(anyway) {
    all = false;
    const held = TABLES[state.table].runs();
    made = TABLES[state.table].make(held[Math.min(state.tableRun, held.length - 1)]);
    if (sort && sort.at >= made.head.length) sort = null;
    if (!chart.visible && anyway !== true) { chart.stale = true; return; }
    paint();
  }
  const chart = { stale: true, visible: false, width: 0, paint() { chart.stale = false; remake(true); }, draw() { remake(); } };
  pending.set($("table"), chart);
  watcher.observe($("table"));
  refillRuns();
  remake();
  on(["table"], () => { sort = null; refillRuns(); remake(); });
  on(["tableRun", "set", "norm", "sink", "part", "readout"], remake);
}
