// The same numbers as tables: sortable, and downloadable as they stand.
const MOST_ROWS = 400;

function cellsOf(table) {
  const forms = table.columns.map((column) => {
    if (column.some((value) => typeof value === "string")) return null;
    return column.every((value) => !known(value) || Number.isInteger(value)) ? (value) => (known(value) ? String(value) : "–") : fmt;
  });
  const cell = (value, form) => (form ? { text: form(value), sort: known(value) ? value : -Infinity, csv: value } : { text: value || "", sort: value || "", csv: value || "", word: true });
  const layers = table.columns[table.head.indexOf("layer")] || [];
  return (table.columns[0] || []).map((_, i) => ({ isMarked: known(table.marked) && layers[i] === table.marked, cells: table.columns.map((column, j) => cell(column[i], forms[j])) }));
}

function buildTables() {
  const titles = distinct(data.tables.map((t) => t.title));
  if (!titles.length) { $("tables").hidden = true; return; }
  state.table = titles[0];
  const ofTitle = () => data.tables.filter((t) => t.title === state.table);
  const runs = choice("Run", "tableRun", [], (value) => set({ tableRun: Number(value) }));
  const refillRuns = () => runs.refill(ofTitle().map((t, i) => [String(i), t.label]));
  let table = null, rows = [], sort = null, all = false;
  const save = el("button", { type: "button", class: "plain", id: "csv", onclick: () => download(`${table.label}-${table.title}`.replace(/[^\w.-]+/g, "-") + ".csv", [table.head, ...ordered().map((r) => r.cells.map((c) => c.csv))]) }, "Download CSV");
  $("table-controls").append(choice("Table", "table", titles.map((title) => [title, title]), (value) => set({ table: value, tableRun: 0 })), runs, save);
  function ordered() {
    if (!sort) return rows;
    const way = sort.down ? -1 : 1;
    return rows.slice().sort((a, b) => { const x = a.cells[sort.at].sort, y = b.cells[sort.at].sort; return (x < y ? -1 : x > y ? 1 : 0) * way; });
  }
  function paint() {
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.at : null;
    const sorted = ordered();
    const head = table.head.map((name, i) => el("th", { scope: "col", class: rows[0] && rows[0].cells[i].word ? "w" : null, "aria-sort": sort && sort.at === i ? (sort.down ? "descending" : "ascending") : null },
      el("button", { type: "button", "data-at": i, onclick: () => { sort = { at: i, down: sort && sort.at === i ? !sort.down : false }; paint(); } }, name)));
    const body = sorted.slice(0, all ? sorted.length : MOST_ROWS).map((r) => el("tr", { class: r.isMarked ? "marked" : null }, r.cells.map((c) => el("td", { class: c.word ? "w" : null }, c.text))));
    $("table").replaceChildren(el("table", { "aria-label": table.title }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
    if (sorted.length > MOST_ROWS && !all) $("table").append(el("button", { type: "button", class: "plain", css: { margin: "10px" }, onclick: () => { all = true; paint(); } }, `Show all ${sorted.length} rows`));
    if (focused !== null && focused !== undefined) { const again = $("table").querySelector(`[data-at="${focused}"]`); if (again) again.focus(); }
  }
  function remake() {
    const tables = ofTitle();
    all = false;
    sort = null;
    table = tables[Math.min(state.tableRun, tables.length - 1)];
    rows = cellsOf(table);
    paint();
  }
  refillRuns();
  remake();
  on(["table"], () => { refillRuns(); remake(); });
  on(["tableRun"], remake);
}
