const SYMBOLS = ["circle", "square", "triangle", "diamond2", "star", "wye", "cross", "times"];
const MOST_MARKS = 1200, MOST_OF_MODEL = 400;
/** What a plot says when it has more to show than it draws. */
const capped = (all, most) => (all > most ? `${most.toLocaleString("en")} of ${all.toLocaleString("en")} marks drawn: narrow the filters.` : "");
const color = (backend) => `var(--c${Math.max(0, BACKENDS.indexOf(backend)) % 8})`;
const symbol = (backend) => SYMBOLS[Math.max(0, BACKENDS.indexOf(backend)) % SYMBOLS.length];
const isFailed = (row) => ["failed", "error", "xpassed"].includes(row.status);
const isSuspect = (row) => row.status === "suspect" || row.odd.length > 0;
const isOdd = (row) => row.status === "inconclusive" || isSuspect(row);
const asIs = (get) => ({ value: get, scale: null });

/** How a mark shows what a figure is worth: hollow for one not to trust, a red ring for one that failed. */
const looks = (get = (d) => color(d.row.backend)) => ({
  fill: asIs((d) => (isOdd(d.row) ? "var(--card)" : get(d))),
  stroke: asIs((d) => (isFailed(d.row) ? "var(--bad)" : get(d))),
  strokeWidth: (d) => (isFailed(d.row) ? 4 : 2), ariaLabel: (d) => d.story(), r: 4.5,
});

/** The figures of one metric as marks; a row without it gives none, so nothing unmeasured is drawn. */
function figures(rows, metric) {
  const own = rows.filter((row) => row.metrics[metric]);
  return d3.sort(own, (row) => row.side !== "baseline").map((row) => {
    const [y, low, high] = row.metrics[metric];
    return { row, y, low: low ?? y, high: high ?? y, story: () => story(row, metric) };
  });
}

/** A scale made for the figures that can be trusted: a suspect one beyond it stands at its edge. */
function upTo(marks) {
  const sound = marks.filter((d) => !isSuspect(d.row));
  return { domain: [0, 1.05 * (d3.max(sound, (d) => d.high) ?? d3.max(marks, (d) => d.y))], clamp: true };
}

/** Draws with Observable Plot, and makes its marks reachable. */
function draw(options) {
  const svg = Plot.plot({ width: 580, height: 310, marginLeft: 60, marginTop: 34, marginBottom: 42, style: { background: "none", color: "var(--ink)" }, ...options });
  const root = svg.tagName === "svg" ? svg : svg.querySelector("svg");
  for (const mark of root.querySelectorAll('g[aria-label="dot"] > *')) mark.setAttribute("data-mark", "");
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", options.ariaLabel);
  reachable(root);
  return svg;
}

const bySymbol = { domain: BACKENDS, range: BACKENDS.map(symbol) };
const tokenAxis = { type: "log", base: 2, label: "context, tokens", tickFormat: (n) => tokens(Math.round(n)), ticks: 6, grid: false };
const lines = (marks, x, z) => Plot.line(d3.sort(marks, (d) => d[x]), { x, y: "y", z, stroke: asIs((d) => color(d.row.backend)), strokeWidth: 1.5, strokeOpacity: 0.7 });
const intervals = (marks, x) => Plot.ruleX(marks, { x, y1: "low", y2: "high", stroke: asIs((d) => color(d.row.backend)), strokeWidth: 1.5 });
const series = (d) => [d.row.source, d.row.id.replace(/-(decode|ttft|concurrency)-.*/, ""), d.row.side, d.row.fmt, d.row.quant, d.row.kv].join("|");

/** One small plot for each model and machine, the ones with most to show first. */
function byModel(marks, most, one) {
  const groups = [...d3.group(marks, (d) => `${d.row.model || d.row.id} on ${d.row.machine}`)].sort((a, b) => d3.max(b[1], (d) => d.x) - d3.max(a[1], (d) => d.x) || b[1].length - a[1].length);
  const nodes = groups.slice(0, most).map(([name, own]) => el("figure", {}, el("h3", {}, name),
    el("p", { class: "soft" }, capped(own.length, MOST_OF_MODEL)), one(own.slice(0, MOST_OF_MODEL), name)));
  return { nodes, note: groups.length > most ? `${most} of ${groups.length} models shown: choose a model, a machine or a word above` : "" };
}

function buildLegend() {
  const swatch = (backend) => {
    const svg = Plot.plot({ width: 16, height: 16, margin: 0, axis: null, x: { domain: [0, 2] }, y: { domain: [0, 2] }, symbol: bySymbol,
      marks: [Plot.dot([backend], { x: 1, y: 1, symbol: [backend], fill: color(backend), r: 5 })] });
    svg.setAttribute("aria-hidden", "true");
    return el("span", {}, svg, backend);
  };
  const key = (style, words) => el("span", {}, el("i", { "aria-hidden": "true", style: `width:12px;height:12px;border-radius:9px;${style}` }), words);
  byId("legend").append(...BACKENDS.map(swatch), key("border:2px solid var(--soft)", "hollow: suspect or inconclusive"),
    key("background:var(--soft);border:2px solid var(--bad)", "red ring: failed"),
    key("border-left:2px solid var(--soft);border-radius:0", "bar: 95 % bounds of the median, or the samples' range"));
}
