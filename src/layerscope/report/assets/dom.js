// Small tools. Every text is set as text, never as markup.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "css") for (const [key, to] of Object.entries(value)) node.style.setProperty(key, to);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    node.append(child.nodeType ? child : document.createTextNode(String(child)));
  }
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const known = (value) => value !== null && value !== undefined;

const canInflate = typeof DecompressionStream !== "undefined"; // browsers before 2023 cannot
async function inflate(packed) {
  const text = atob(packed), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Four significant digits, the same in charts, tooltips and tables.
function fmt(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  const digits = size >= 999.5 ? 0 : size >= 99.95 ? 1 : size >= 9.995 ? 2 : size >= 0.9995 ? 3 : size >= 0.001 ? 4 : -1;
  const text = digits < 0 ? size.toExponential(2) : size.toFixed(digits);
  return (value < 0 ? "−" : "") + text;
}
const plural = (n, word) => n + " " + word + (n === 1 ? "" : "s");

function ranges(numbers) {
  const parts = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    const last = parts[parts.length - 1];
    if (last && n === last[1] + 1) last[1] = n;
    else parts.push([n, n]);
  }
  return parts.map(([a, b]) => (a === b ? String(a) : a + "–" + b)).join(", ");
}

function download(name, rows) {
  const quote = (cell) => {
    let text = known(cell) ? String(cell) : "";
    // a spreadsheet must not take a name for a formula
    if (typeof cell === "string" && /^[=+\-@\t\r]/.test(text)) text = "'" + text;
    return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  };
  const text = rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

let saying = 0;
function say(text) {
  clearTimeout(saying);
  saying = setTimeout(() => { $("said").textContent = text; }, 150);
}
