// Scales and round ticks.
function linear(low, high, from, to) {
  const span = high - low || 1;
  const scale = (value) => from + ((value - low) / span) * (to - from);
  scale.invert = (place) => low + ((place - from) / (to - from)) * span;
  return scale;
}
function logarithmic(low, high, from, to) {
  const inner = linear(Math.log10(low), Math.log10(high), from, to);
  return (value) => inner(Math.log10(value));
}
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push(Number((k * step).toPrecision(12)));
  return out;
}
function layerTicks(low, high, count) {
  return ticks(low, high, count).filter((t) => Number.isInteger(t));
}
function logTicks(low, high) {
  const out = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++) {
    for (const m of [1, 2, 5]) { const t = m * 10 ** p; if (t >= low * 0.999 && t <= high * 1.001) out.push(t); }
  }
  // within a small part of a decade none of those may fall: then as on a straight axis
  if (out.length < 2) return ticks(low, high, 4).filter((t) => t >= low && t <= high);
  return out.length > 6 ? out.filter((t) => Number.isInteger(Math.log10(t))) : out;
}
const tickText = (value) => {
  const size = Math.abs(value);
  if (size >= 10000) return (value / 1000).toFixed(0) + "k";
  return String(Number(value.toPrecision(4))).replace("-", "−");
};
// Places at least `gap` apart, each as near as may be to where it wants to be.
function spread(wanted, gap, low, high) {
  const order = wanted.map((y, i) => ({ y, i })).sort((a, b) => a.y - b.y);
  let at = low;
  for (const item of order) { item.to = Math.max(item.y, at); at = item.to + gap; }
  let limit = high;
  for (const item of order.slice().reverse()) { if (item.to > limit) item.to = limit; limit = item.to - gap; }
  const out = [];
  for (const item of order) out[item.i] = item.to;
  return out;
}
