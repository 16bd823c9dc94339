const DATA = JSON.parse(byId("data").textContent);

const METRICS = [
  ["decode_tok_s", "Decode", "tok/s"], ["ttft_s", "TTFT", "s"], ["ttft_cached_s", "TTFT cached", "s"],
  ["prefill_tok_s", "Prefill", "tok/s"], ["peak_memory_bytes", "Memory", "bytes"], ["load_s", "Load", "s"],
  ["aggregate_tok_s", "All streams", "tok/s"],
];
const LABELS = new Map(METRICS.map(([name, label]) => [name, label]));
const STATUSES = ["failed", "error", "xpassed", "inconclusive", "suspect", "passed", "xfailed", "skipped", "reference"];
const STATUS_WORDS = { error: "not measured (error)", reference: "baseline", xpassed: "unexpectedly passed", xfailed: "known issue" };

const label = (metric) => LABELS.get(metric) ?? metric.replaceAll("_", " ");
const value = (row, metric) => row.metrics[metric]?.[0] ?? null;

// toLocaleString makes a formatter each time, which costs more than all the drawing.
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Map([3, 6].map((digits) => [digits, new Intl.NumberFormat("en", { maximumSignificantDigits: digits })]));

const number = (x, digits = 3) => (Math.abs(x) >= 1000 ? WHOLE : SHORT.get(digits)).format(x);

function text(metric, x) {
  if (x === null || x === undefined) return "–";
  if (metric.endsWith("_ratio")) return x.toFixed(3);
  if (metric.endsWith("tok_s")) return `${number(x)} tok/s`;
  if (metric.endsWith("_bytes")) return x >= 2 ** 30 ? `${(x / 2 ** 30).toFixed(2)} GiB` : `${number(x / 2 ** 20)} MiB`;
  if (metric.endsWith("_s")) return Math.abs(x) < 1 ? `${number(x * 1000)} ms` : `${number(x)} s`;
  return number(x, 6);
}

const percent = (x) => `${(100 * x).toFixed(Math.abs(x) < 0.001 ? 3 : 1)}\u00a0%`;
const signed = (share) => `${share > 0 ? "+" : "−"}${percent(Math.abs(share))}`;
const tokens = (n) => n >= 1024 && n % 1024 === 0 ? `${n / 1024}k` : n.toLocaleString("en");

/** Samples, bounds and spread of a figure in words. */
function spread(metric, figure) {
  const [, low, high, samples, how] = figure;
  if (low === null) return "1 sample: spread unknown";
  const words = how === "bounds" ? "median within" : "range";
  const shown = samples.length > 12 ? [...samples.slice(0, 12), "…"] : samples;
  return `${samples.length} samples, ${words} ${text(metric, low)} to ${text(metric, high)}\n` +
    `samples: ${shown.map((s) => (s === "…" ? s : text(metric, s))).join(", ")}`;
}

function conditions(row) {
  const { source, low_power_mode: low, thermal_state: before, thermal_after: after } = row.conditions;
  const known = [
    source && (source === "ac" ? "AC power" : `on ${source}`),
    typeof low === "boolean" && `Low Power Mode ${low ? "ON" : "off"}`,
    before && (after && after !== before ? `thermal ${before} → ${after}` : `thermal ${before}`),
  ].filter(Boolean);
  return known.length ? known.join(", ") : "power and thermal state not known";
}

const sourceOf = (row) => DATA.sources[row.source];
const setting = (row) => [row.fmt, row.quant, row.kv && row.kv !== "default" ? `kv ${row.kv}` : ""].filter(Boolean).join(" · ");
const point = (row) => row.prompt || [row.section, row.point].filter(Boolean).join(" ");
const engine = (row) => [row.backend, row.version].filter(Boolean).join(" ");

/** What a mark says of one metric of a row. */
function story(row, metric, figure = row.metrics[metric]) {
  const lines = [
    `${row.model || row.id} · ${point(row)}${row.side ? ` · ${row.side}` : ""}`,
    [engine(row), setting(row)].filter(Boolean).join(" · "),
    `${label(metric)}: ${text(metric, figure[0])}; ${spread(metric, figure)}`,
    `${row.machine}, ${conditions(row)}, ${row.created.slice(0, 16).replace("T", " ")} UTC`,
  ];
  if (row.status !== "passed" && row.status !== "reference") lines.push(`${row.status}: ${row.odd.join("; ") || row.reason || row.status}`);
  return lines.filter(Boolean).join("\n");
}

/** The gated ratio that is furthest below its gate, or least above it. */
function worst(row) {
  const ratios = row.verdicts.filter((v) => v.ratio !== null);
  return ratios.length ? ratios.reduce((a, b) => (b.ratio / b.gate < a.ratio / a.gate ? b : a)) : null;
}

for (const [index, row] of DATA.rows.entries()) {
  const source = sourceOf(row);
  row.index = index;
  row.machine = source.machine;
  row.created = source.created;
  row.worst = worst(row);
  row.where = point(row);
  row.text = [row.id, row.modelId, row.model, row.backend, row.version, row.fmt, row.quant, row.kv, row.where, row.machine,
    row.status, row.reason, source.file, source.commit].join(" ").toLowerCase();
}

const distinct = (rows, get) => [...new Set(rows.map(get))].filter((x) => x !== "" && x !== null && x !== undefined)
  .sort((a, b) => String(a).localeCompare(String(b), "en", { numeric: true }));
const BACKENDS = distinct(DATA.rows, (row) => row.backend);
