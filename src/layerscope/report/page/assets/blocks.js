// Probes and whatever another package shows: sentences, charts over the layers, drawn figures.
const DASHES = ["", "9 4", "2 4", "9 3 2 3", "14 4"];

function blockLines(chart) {
  return chart.lines.map((line, i) => ({
    key: line.name, name: line.name, color: i, dash: DASHES[Math.floor(i / 7) % 5], marker: Object.keys(SHAPES)[i % 5],
    x: line.layers.map((k) => position(k, line.blocks)), layers: line.layers, y: line.v, lo: line.lo, hi: line.hi,
  }));
}
function blockNotes(chart) {
  return chart.lines.flatMap((line, i) => {
    if (!line.note) return [];
    const at = line.layers.indexOf(line.note[0]);
    return at < 0 || !known(line.v[at]) ? [] : [{ x: position(line.note[0], line.blocks), y: line.v[at], color: i, text: line.note[1] }];
  });
}

// A table that belongs to what the block says; what its first column repeats is shown once.
function inlineTable(table) {
  const [first, ...rest] = table.columns;
  const rows = first.map((value, i) => {
    const repeated = i > 0 && first[i - 1] === value;
    return el("tr", { class: repeated ? "same" : null }, el("td", {}, repeated ? "" : String(value)), rest.map((column, j) => el("td", { "data-head": table.head[j + 1] }, known(column[i]) || typeof column[i] === "string" ? String(column[i]) : "–")));
  });
  const head = el("thead", {}, el("tr", {}, table.head.map((name) => el("th", { scope: "col" }, name))));
  return el("div", { class: "scroll inline", tabindex: "0", role: "region", "aria-label": table.title }, el("table", {}, el("caption", {}, table.title), head, el("tbody", {}, rows)));
}

function buildBlocks() {
  const charts = [];
  data.blocks.forEach((block, n) => {
    const id = "block-" + n;
    const host = el("div", { class: block.charts.length > 1 ? "grid" : null });
    const [first, ...rest] = block.words, picture = el("div", { class: "picture" });
    const figures = block.figures.map((source, i) => el("img", { class: "drawn", src: source, alt: block.title + ", figure " + (i + 1) }));
    $(block.chosen ? "chosen" : "blocks").append(el("section", { class: "block", "data-kind": block.kind, "aria-labelledby": id },
      el("h2", { id }, block.title), first ? el("p", { class: "answer" }, first) : null,
      rest.length ? el("ul", { class: "points" }, rest.map((text) => el("li", {}, text))) : null, picture, block.tables.filter((t) => t.inline).map(inlineTable), host, figures));
    if (block.grid) buildChoosing(picture, block.grid); else picture.remove();
    for (const chart of block.charts) charts.push(lineChart(host, {
      name: chart.title, unit: chart.unit, wide: block.charts.length === 1, height: block.charts.length === 1 ? 330 : 230, means: () => chart.says,
      series: () => blockLines(chart), notes: () => blockNotes(chart), legend: true,
    }));
  });
  on(["axis", "theme"], () => charts.forEach((chart) => chart.draw()));
  on(["cursor"], () => charts.forEach((chart) => chart.follow()));
}
