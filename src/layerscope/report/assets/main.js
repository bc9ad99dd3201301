// The page from top to bottom.
function buildTheme() {
  const root = document.documentElement, button = $("theme"), query = matchMedia("(prefers-color-scheme: dark)");
  let wanted = null;
  try { wanted = localStorage.getItem("layerscope-theme"); } catch { /* storage is off */ }
  function apply() {
    root.dataset.theme = wanted || (query.matches ? "dark" : "light");
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", dark() ? "Use the light theme" : "Use the dark theme");
    set({ theme: root.dataset.theme });
  }
  button.addEventListener("click", () => {
    wanted = dark() ? "light" : "dark";
    try { localStorage.setItem("layerscope-theme", wanted); } catch { /* storage is off */ }
    apply();
  });
  query.addEventListener("change", apply);
  apply();
}

function buildTop() {
  $("subject").textContent = data.subject.join("  ·  ");
  $("points").append(...data.headline.slice(1).map((text) => el("li", {}, text)));
  $("points").hidden = data.headline.length < 2;
  const few = 8;
  const list = data.notices.map((n) => el("li", { "data-level": n.level }, el("span", { class: "tag" }, n.level === "warn" ? "Mind" : "Note"), el("span", {}, el("b", {}, n.about + ": "), n.text)));
  // what may mislead a reader is told at once, the rest behind the content
  const misleading = list.filter((item) => item.dataset.level === "warn"), notes = list.filter((item) => item.dataset.level !== "warn");
  $("warnings").hidden = !misleading.length;
  const most = misleading.length > 4 ? 3 : 4; // a wall of them would hide the content
  $("warnings").append(...misleading.slice(0, most));
  if (misleading.length > most) {
    const more = el("ul", { class: "notices" }, misleading.slice(most));
    $("warnings").after(el("details", { class: "more" }, el("summary", {}, `${misleading.length - most} more to mind`), more));
  }
  $("notices").append(...notes.slice(0, few));
  if (notes.length > few) {
    const rest = el("ul", { class: "notices" }, notes.slice(few));
    $("notices").after(el("details", {}, el("summary", {}, `${notes.length - few} more`), rest));
  }
  if (!list.length) $("notices").append(el("li", { "data-level": "note" }, "Nothing was cut, left out or undefined."));
  const { runs, rows } = data.conventions;
  const body = rows.map((r) => el("tr", { class: r.differs ? "differs" : null }, el("td", {}, r.name), r.values.map((v) => el("td", {}, v || "–"))));
  $("conventions").querySelector(".scroll").append(el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, ""), runs.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, body)));
  $("foot").textContent = `Made by layerscope ${data.layerscope} on ${data.made}. Layer k is the state after k blocks; layer 0 is the input of the first. This file is complete: it loads nothing.`;
}

buildTheme();
buildTop();
buildControls();
buildCurves();
buildScores();
buildBlocks();
buildMaps();
buildTables();
document.documentElement.dataset.ready = "yes";
performance.mark("layerscope-ready");

// Paper is white: a page in the dark theme is printed in the light one.
let screenTheme = null;
window.addEventListener("beforeprint", () => {
  screenTheme = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  set({ theme: "light", cursor: null });
  for (const chart of charts.values()) if (chart.isStale) chart.paint();
});
window.addEventListener("afterprint", () => {
  if (!screenTheme) return;
  document.documentElement.dataset.theme = screenTheme;
  set({ theme: screenTheme });
  screenTheme = null;
});
