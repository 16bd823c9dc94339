const rate = { label: "tok/s", grid: true, zero: true, nice: true };

function decodeByContext(rows) {
  const marks = figures(rows.filter((row) => row.context && !row.level), "decode_tok_s");
  for (const d of marks) d.x = d.row.context;
  return byModel(marks, 6, (own, name) => draw({
    ariaLabel: `Decode speed against context length, ${name}`, x: tokenAxis, y: { ...rate, ...upTo(own) }, symbol: bySymbol,
    marks: [lines(own, "x", series), intervals(own, "x"), Plot.dot(own, { x: "x", y: "y", symbol: (d) => d.row.backend, ...looks() })],
  }));
}

function concurrency(rows) {
  const marks = figures(rows.filter((row) => row.level), "aggregate_tok_s");
  for (const d of marks) d.x = d.row.level;
  return byModel(marks, 6, (own, name) => draw({
    ariaLabel: `Tokens a second of all streams against their number, ${name}`, symbol: bySymbol,
    x: { label: "streams at once", ticks: distinct(own, (d) => d.x), tickFormat: "d", type: "log", base: 2 }, y: { ...rate, ...upTo(own), label: "tok/s, all streams" },
    marks: [lines(own, "x", series), intervals(own, "x"), Plot.dot(own, { x: "x", y: "y", symbol: (d) => d.row.backend, ...looks() })],
  }));
}

function memoryBySpeed(rows) {
  const all = figures(rows.filter((row) => row.metrics.peak_memory_bytes), "decode_tok_s"), marks = all.slice(0, MOST_MARKS);
  if (!marks.length) return { nodes: [] };
  for (const d of marks) {
    d.x = value(d.row, "peak_memory_bytes") / 2 ** 30;
    d.story = () => `${story(d.row, "decode_tok_s")}\nMemory: ${text("peak_memory_bytes", value(d.row, "peak_memory_bytes"))}`;
  }
  const node = draw({ ariaLabel: "Peak memory beside decode speed", symbol: bySymbol, height: 360,
    x: { label: "peak memory, GiB →", grid: true, nice: true }, y: { ...rate, ...upTo(marks), label: "↑ decode, tok/s" },
    marks: [intervals(marks, "x"), Plot.dot(marks, { x: "x", y: "y", symbol: (d) => d.row.backend, ...looks() })] });
  return { nodes: [node], note: `Better is up and to the left. ${capped(all.length, MOST_MARKS)}` };
}

const MOST_BARS = 40;

function coldAndCached(rows) {
  const both = rows.filter((row) => row.metrics.ttft_s && row.metrics.ttft_cached_s);
  const shown = d3.sort(both, (row) => value(row, "ttft_s")).slice(0, MOST_BARS);
  if (!shown.length) return { nodes: [] };
  const names = new Map(shown.map((row) => [row, `${row.id}${row.prompt ? ` · ${row.prompt}` : ""}${both.some((o) => o !== row && o.id === row.id && o.where === row.where) ? ` · ${row.source + 1}` : ""}`]));
  const marks = (metric) => figures(shown, metric).map((d) => ({ ...d, x: d.y, name: names.get(d.row) }));
  const cold = marks("ttft_s"), cached = marks("ttft_cached_s");
  const node = draw({ ariaLabel: "Time to first token, cold beside cached", marginLeft: 260, marginTop: 6, width: 640, height: 52 + 22 * shown.length,
    x: { type: "log", label: "seconds (log scale)", grid: true, ticks: 3, tickFormat: (s) => text("_s", s) }, y: { label: null, domain: shown.map((row) => names.get(row)), tickFormat: (s) => s.length > 38 ? `${s.slice(0, 37)}…` : s },
    symbol: { domain: ["cold", "cached"], range: ["circle", "diamond2"] },
    marks: [Plot.link(shown, { x1: (r) => value(r, "ttft_cached_s"), x2: (r) => value(r, "ttft_s"), y1: (r) => names.get(r), y2: (r) => names.get(r), stroke: "var(--line)", strokeWidth: 3 }),
      Plot.ruleY(cold, { y: "name", x1: "low", x2: "high", stroke: asIs((d) => color(d.row.backend)) }),
      Plot.dot(cold, { x: "x", y: "name", symbol: () => "cold", ...looks() }),
      Plot.dot(cached, { x: "x", y: "name", symbol: () => "cached", ...looks(() => "var(--soft)") })] });
  return { nodes: [node], note: `Round, in the backend's colour: a new prompt. Grey diamond: the same prompt again.${both.length > shown.length ? ` ${shown.length} of ${both.length} shown, the quickest.` : ""}` };
}

function parityRatios(rows) {
  const found = rows.filter((row) => row.side === "candidate").flatMap((row) => Object.keys(row.metrics).filter((m) => m.endsWith("_ratio")).map((metric) => {
    const [x, low, high] = row.metrics[metric], name = metric.slice(0, -6), gated = row.verdicts.find((v) => v.metric === name);
    const bad = gated && !passes(gated), source = sourceOf(row), bounds = gated?.interval ?? [low ?? x, high ?? x];
    const said = gated ? `gate ${gated.gate}: ${gated.outcome}` : "not gated";
    return { row: { ...row, status: bad ? "failed" : gated?.outcome === "inconclusive" ? "inconclusive" : "passed" }, x, low: bounds[0], high: bounds[1],
      title: `${row.section}: ${name}`, gated: Boolean(gated), model: row.model, point: row.point, gate: source.gate, goal: source.goal,
      story: () => `${story({ ...row, status: "passed" }, metric)}\n${said}${bad ? `, ${percent(1 - x / gated.gate)} below it` : ""}` };
  }));
  const groups = [...d3.group(found, (d) => d.title)];
  for (const [, marks] of groups) tellApart(marks);
  return { nodes: groups.map(([name, marks]) => el("figure", {}, el("h3", {}, marks.some((d) => d.gated) ? name : `${name} (not gated)`),
    el("p", { class: "soft" }, capped(marks.length, MOST_MARKS)), ratioPlot(name, marks.slice(0, MOST_MARKS)))), wide: true,
    note: "More than 1: better than the baseline. Dashed red: the gate; solid: the goal. The bar is the interval of the ratio." };
}

/** A model that several records measured has a line for each: by machine, else by day, else by the record's number. */
function tellApart(marks) {
  for (const own of d3.group(marks, (d) => d.row.model).values()) {
    const sources = distinct(own, (d) => d.row.source);
    const ways = [() => "", (d) => d.row.machine, (d) => d.row.created.slice(0, 10), (d) => `record ${d.row.source + 1}`];
    const way = ways.find((get) => new Set(sources.map((s) => get(own.find((d) => d.row.source === s)))).size === sources.length);
    for (const d of own) d.model = [d.row.model, way(d)].filter(Boolean).join(", ");
  }
}

const MOST_LINEAR = 3;

/** Ratios far apart go on a log scale: else one of 18 would hide all that is near 1. */
function ratioAxis(marks, limits) {
  const reach = [...marks.flatMap((d) => [d.low, d.high, d.x]), ...limits], [low, high] = d3.extent(reach.filter((x) => x > 0));
  const common = { label: null, grid: true, nice: true, tickFormat: (r) => String(+r.toPrecision(3)) };
  if (high / low <= MOST_LINEAR) return { ...common, ticks: 5 };
  return { ...common, type: "log", base: 2, ticks: 5, label: "log scale" };
}

function ratioPlot(name, marks) {
  const points = distinct(marks, (d) => d.point), models = distinct(marks, (d) => d.model), step = Math.min(9, 26 / points.length);
  const shade = new Map(points.map((p, i) => [p, `var(--c${i % 8})`]));
  const shapes = { domain: points, range: points.map((_, i) => SYMBOLS[i % 8]), legend: false };
  const limit = marks[0], gated = marks.some((d) => d.gated);
  const svg = draw({ ariaLabel: `Ratio to the baseline, ${name}`, marginLeft: 250, marginTop: 6, height: 48 + Math.max(26, step * points.length + 8) * models.length,
    x: ratioAxis(marks, gated ? [limit.gate, limit.goal] : [limit.goal]), symbol: shapes,
    y: { domain: models, label: null, tickFormat: (s) => s.length > 38 ? `${s.slice(0, 37)}…` : s },
    marks: [Plot.ruleX(gated ? [limit.gate] : [], { stroke: "var(--bad)", strokeDasharray: "5,3" }), Plot.ruleX([limit.goal], { stroke: "var(--good)", strokeWidth: 1.5 }),
      ...points.flatMap((p, i) => {
        const own = marks.filter((d) => d.point === p), dy = (i - (points.length - 1) / 2) * step;
        return [Plot.ruleY(own, { y: "model", x1: "low", x2: "high", dy, stroke: shade.get(p), strokeWidth: 1.5 }),
          Plot.dot(own, { x: "x", y: "model", dy, symbol: "point", ...looks((d) => shade.get(d.point)) })];
      })] });
  const keys = points.map((p) => el("span", {}, el("i", { "aria-hidden": "true", style: `width:10px;height:10px;border-radius:9px;background:${shade.get(p)}` }), p));
  return el("div", {}, el("div", { class: "legend" }, ...keys), svg);
}

const PLOTS = [
  ["context", "Decode against context length", decodeByContext, "decode speed with a known context length"],
  ["parity", "Parity ratios", parityRatios, "parity record"],
  ["cached", "Time to first token, cold beside cached", coldAndCached, "TTFT both cold and cached"],
  ["memory", "Memory beside speed", memoryBySpeed, "measurement with both memory and decode speed"],
  ["streams", "Concurrency", concurrency, "concurrency level"],
  ["history", "History", overTime, "entry measured in two records"],
];

function buildPlots() {
  byId("plots").append(...PLOTS.map(([id, title]) => el("div", { class: "card", id: `plot-${id}` }, el("h3", {}, title),
    el("p", { class: "soft" }), el("div", { class: "draw" }))));
}

/** All of them at once: one drawn only when it comes into sight would move what the reader is about to click. */
function showPlots(rows) {
  for (const [id, , make, needs] of PLOTS) drawPlot(byId(`plot-${id}`), make(rows), needs);
}

function drawPlot(card, { nodes, note, wide }, needs) {
  card.querySelector(".draw").replaceChildren(...nodes);
  card.querySelector("p").textContent = nodes.length ? note ?? "" : `Nothing to draw: no ${needs} among the chosen rows.`;
  card.classList.toggle("wide", Boolean(nodes.length) && (wide === true || nodes.length > 1));
  card.querySelector(".draw").classList.toggle("multiples", nodes.length > 1);
}
