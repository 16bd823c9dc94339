function buildHead() {
  byId("title").textContent = document.title = DATA.title;
  const files = DATA.sources.length;
  const measured = DATA.rows.filter((row) => Object.keys(row.metrics).length).length;
  byId("about").textContent = `${plural(measured, "measurement")} from ${plural(files, "record")} of ` +
    `${plural(MACHINES.length, "machine")}; made offline by pytest-llmbench ${DATA.release}`;
}

const MOST_SHOWN = 12;
const MACHINES = distinct(DATA.sources, (s) => s.machine);

/** The verdict first: what failed and by how much. */
function buildVerdict() {
  const rows = DATA.rows.filter((row) => row.side !== "baseline");
  const counts = new Map(STATUSES.map((status) => [status, rows.filter((row) => row.status === status).length]));
  const failed = failedGates(rows);
  const bad = counts.get("failed") + counts.get("error") + counts.get("xpassed");
  const odd = counts.get("inconclusive") + counts.get("suspect");
  const box = byId("verdict");
  box.className = bad ? "bad" : odd ? "odd" : "good";
  box.append(el("h2", { id: "verdict-head" }, headline(counts, failed, bad, odd)));
  box.append(el("div", { class: "chips" }, el("span", { class: "soft" }, `Of ${plural(rows.length, "result")}:`), ...STATUSES.filter((s) => counts.get(s)).map((status) => el("button", {
    type: "button", class: `badge ${status}`, "data-status": status, "aria-pressed": "false",
    on: { click: () => setState({ status: state.status === status ? "" : status }) },
  }, `${counts.get(status)} ${STATUS_WORDS[status] ?? status}`))));
  if (failed.length) box.append(el("ul", {}, ...failed.slice(0, MOST_SHOWN).map(gateLine)));
  if (failed.length > MOST_SHOWN) box.append(el("p", { class: "soft" }, `and ${failed.length - MOST_SHOWN} more: choose “failed” above`));
  const slower = DATA.trends.found.filter((t) => t.worse);
  if (slower.length) box.append(el("p", { class: "held" }, `${plural(slower.length, "figure")} got worse over the records, by a change of level or a drift: see History`));
}

/** A result may have several gates. Those of a known issue are no news. */
function failedGates(rows) {
  return rows.filter((row) => row.outcome !== "xfailed").flatMap((row) => row.verdicts.filter((v) => !passes(v)).map((v) => ({ row, v })))
    .sort((a, b) => shortfall(b.v) - shortfall(a.v));
}

const passes = (v) => v.outcome === "passed" || (v.outcome === "inconclusive" && v.ratio >= v.gate);
const shortfall = (v) => v.ratio !== null ? 1 - v.ratio / v.gate : v.rule === "at_most" ? v.value / v.gate - 1 : 1 - v.value / v.gate;

function headline(counts, failed, bad, odd) {
  if (failed.length === 1) return `1 gate failed by ${percent(shortfall(failed[0].v))}`;
  if (failed.length) return `${plural(failed.length, "gate")} failed in ${plural(new Set(failed.map(({ row }) => row)).size, "result")}, the worst by ${percent(shortfall(failed[0].v))}`;
  if (bad) return `No gate failed, but ${plural(bad, "test")} failed or couldn't be measured`;
  const measured = counts.get("passed") + odd;
  if (!measured) return "Nothing was measured";
  return odd ? `No gate failed; ${plural(odd, "result")} to be taken with care` : "All passed";
}

function gateLine({ row, v }) {
  const facts = v.ratio === null
    ? `${text(v.metric, v.value)}, gate ${v.rule === "at_most" ? "at most" : "at least"} ${text(v.metric, v.gate)}`
    : `ratio ${v.ratio.toFixed(4)}${v.interval ? ` (${v.interval.map((x) => x.toFixed(3)).join(" to ")})` : ""}, gate ${v.gate}, ` +
      `${text(v.metric, v.value)} against ${text(v.metric, v.reference)}`;
  const by = el("span", { class: "held" }, `${percent(shortfall(v))} ${v.rule === "at_most" ? "over" : "below"} the gate`);
  return el("li", {}, el("b", {}, `${row.model || row.id} · ${row.where} · ${v.metric}`),
    el("small", {}, by, `: ${facts}, n = ${v.n}${MACHINES.length > 1 ? `, ${row.machine}` : ""}${v.outcome === "inconclusive" ? ", inconclusive" : ""}`));
}

const MOST_RECORDS_NAMED = 3;

/** Records of one machine stand in one line; where it was slowed down, the line says in which of them. */
function buildMachines() {
  const heads = ["Machine", "Throttled?", "Power", "System", "Memory", "Swap used", "Records", "Measured (UTC)", "Commit"];
  const groups = d3.group(DATA.sources, (s) => JSON.stringify([s.fingerprint, s.machine, s.system, s.memory_bytes]));
  byId("machines").append(el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", {}, ...[...groups.values()].map((own) => el("tr", {}, ...machineCells(own).map((cell) => el("td", {}, cell)))))));
}

function machineCells(sources) {
  const [first] = sources, each = (get) => distinct(sources, get).join("; ");
  const swap = d3.max(sources, (s) => s.swap_bytes), days = d3.sort(sources.map((s) => s.created.slice(0, 16).replace("T", " ")));
  return [el("span", { class: "whole" }, first.machine), held(sources), each(power) || "not known", first.system || "–",
    first.memory_bytes ? text("_bytes", first.memory_bytes) : "–", typeof swap === "number" ? text("_bytes", swap) : "–",
    recordNames(sources), days.length > 1 ? `${days[0]} to ${days.at(-1)}` : days[0], each((s) => s.commit.slice(0, 10)) || "–"];
}

const power = (s) => [s.power.source === "ac" ? "AC" : s.power.source,
  typeof s.power.low_power_mode === "boolean" && `Low Power Mode ${s.power.low_power_mode ? "ON" : "off"}`].filter(Boolean).join(", ");

function recordNames(sources) {
  const names = distinct(sources, (s) => s.file), named = names.slice(0, MOST_RECORDS_NAMED).join(", ");
  return names.length > MOST_RECORDS_NAMED ? `${named} and ${names.length - MOST_RECORDS_NAMED} more` : named;
}

/** Whether a machine was slowed down while it measured. */
function held(sources) {
  const rows = DATA.rows.filter((row) => sources.includes(sourceOf(row)) && row.side !== "baseline" && Object.keys(row.metrics).length);
  const slowed = rows.filter((row) => row.conditions.held_back === true);
  const where = sources.length > 1 ? ` (${recordNames(distinct(slowed, sourceOf))})` : "";
  if (slowed.length) return el("span", { class: "held" }, `YES, in ${slowed.length} of ${plural(rows.length, "measurement")}${where}`);
  const known = rows.filter((row) => row.conditions.held_back === false);
  if (!known.length) return el("span", { class: "none" }, "not known: the record doesn't say");
  const thermal = known.some((row) => row.conditions.thermal_state);
  return `${thermal ? "no" : "no Low Power Mode; thermal state not recorded"}${known.length < rows.length ? `; not known of ${rows.length - known.length}` : ""}`;
}

function showVerdict() {
  for (const chip of document.querySelectorAll("[data-status]")) chip.setAttribute("aria-pressed", String(chip.dataset.status === state.status));
}
