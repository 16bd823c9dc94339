const MOST_SERIES = 12, MOST_RECORDS = 100, MOST_TRENDS = 20;

const trendKey = (entry, machine, place, metric) => [entry, machine, place, metric].join("\n");
const entryOf = (row) => (row.prompt ? `${row.id}-${row.prompt}` : row.id);
const placeOf = (row, metric) => trendKey(entryOf(row), row.machine, sourceOf(row).place, metric);
const TRENDS = new Map(DATA.trends.found.map((t) => [trendKey(t.name, t.machine, t.place, t.metric), t]));
const moved = (metric, shift) => `${text(metric, shift.before)} → ${text(metric, shift.after)} (${signed(shift.move.share)})`;

/** Each entry's figure over its records as shares of the first, with the places where its level changed. */
function overTime(rows) {
  const metric = rows.some((row) => row.metrics.decode_tok_s) ? "decode_tok_s" : "ttft_s";
  const name = (row) => [row.id, row.prompt, row.side, row.machine].filter(Boolean).join(" · ");
  const groups = [...d3.group(figures(rows, metric), (d) => name(d.row))].map(([key, own]) => [key, d3.sort(own, (d) => d.row.created)])
    .filter(([, own]) => new Set(own.map((d) => d.row.created)).size > 1)
    .sort((a, b) => gotWorse(b[1], metric) - gotWorse(a[1], metric) || b[1].length - a[1].length);
  const marks = groups.slice(0, MOST_SERIES).flatMap(([key, own]) => own.slice(-MOST_RECORDS).map((d) => pointInTime(d, key, own[0].y, metric)));
  if (!marks.length) return { nodes: [] };
  const old = groups.some(([, own]) => own.length > MOST_RECORDS) ? `Of each the last ${MOST_RECORDS} records` : "";
  const some = groups.length > MOST_SERIES ? `${MOST_SERIES} of ${groups.length} entries shown: choose a model or a word above` : "";
  const { missing, fewest } = DATA.trends;
  const looked = missing ? `Changes of level weren't looked for: ${missing}` : `Changes of level and drifts are looked for from ${fewest} records of a machine on`;
  return { nodes: [el("div", {}, timePlot(marks, metric), ...trendTable(rows))], note: `${[some, old, looked].filter(Boolean).join(". ")}.`, wide: true };
}

const gotWorse = (own, metric) => own.some((d) => d.row.side !== "baseline" && TRENDS.get(placeOf(d.row, metric))?.worse);

function pointInTime(d, key, first, metric) {
  const trend = d.row.side === "baseline" ? null : TRENDS.get(placeOf(d.row, metric));
  const shift = trend?.shifts.find((s) => s.created === d.row.created);
  const lines = () => [d.story(), `${percent(d.y / first - 1)} against the first record; commit ${sourceOf(d.row).commit.slice(0, 10) || "unknown"}`,
    shift && `From here on another level: ${moved(metric, shift)}`, ...(shift?.upgraded ?? [])].filter(Boolean);
  return { ...d, key, first, x: new Date(d.row.created), shift, story: () => lines().join("\n") };
}

function timePlot(marks, metric) {
  const share = (of) => (d) => d[of] / d.first, shifts = marks.filter((d) => d.shift);
  const tone = (d) => (d.shift.move.worse ? "var(--bad)" : "var(--good)");
  return draw({ ariaLabel: `${label(metric)} over the records, the first being 1`, width: 1200, height: 360, marginRight: 40,
    x: { type: "utc", label: "record made (UTC)" }, y: { label: `${label(metric)}, first record = 1`, grid: true, nice: true }, symbol: bySymbol,
    marks: [Plot.ruleY([1], { stroke: "var(--soft)", strokeDasharray: "2,3" }),
      Plot.line(marks, { x: "x", y: share("y"), z: "key", stroke: asIs((d) => color(d.row.backend)), strokeOpacity: 0.7 }),
      Plot.ruleX(marks, { x: "x", y1: share("low"), y2: share("high"), stroke: asIs((d) => color(d.row.backend)) }),
      Plot.ruleX(shifts, { x: "x", y1: (d) => d.shift.before / d.first, y2: (d) => d.shift.after / d.first, stroke: asIs(tone), strokeWidth: 7, strokeOpacity: 0.45 }),
      Plot.dot(marks, { x: "x", y: share("y"), symbol: (d) => d.row.backend, ...looks() }),
      Plot.text(shifts, { x: "x", y: (d) => Math.max(d.shift.before, d.shift.after) / d.first, dy: -12, fill: asIs(tone), fontWeight: 600, text: (d) => signed(d.shift.move.share) })] });
}

/** What moved, for whoever reads rather than looks; of all metrics, not only the drawn one. */
function trendTable(rows) {
  const there = new Set(rows.filter((row) => row.side !== "baseline").map((row) => placeOf(row, "")));
  const found = DATA.trends.found.filter((t) => there.has(trendKey(t.name, t.machine, t.place, ""))).flatMap(trendCells);
  if (!found.length) return [];
  const more = found.length > MOST_TRENDS ? el("caption", {}, `${MOST_TRENDS} of ${found.length}: choose a model`) : null;
  const heads = ["Entry", "Metric", "Machine", "What", "From", "Moved"];
  return [el("table", { class: "trends" }, more, el("thead", {}, el("tr", {}, ...heads.map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", {}, ...found.slice(0, MOST_TRENDS).map((cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, cell))))))];
}

function trendCells(t) {
  const whose = [t.name, label(t.metric), t.machine];
  const words = (move, said) => el("span", { class: move.worse ? "held" : null }, `${said}${move.worse ? ", worse" : ", better"}`);
  const shifts = t.shifts.map((s) => [...whose, "change of level", [s.created.slice(0, 16).replace("T", " "), s.commit.slice(0, 10), ...s.upgraded].filter(Boolean).join(", "), words(s.move, moved(t.metric, s))]);
  return t.drift ? [...shifts, [...whose, "drift", `over ${t.records} records`, words(t.drift, signed(t.drift.share))]] : shifts;
}
