const PAGE_ROWS = 100;
const rank = new Map(STATUSES.map((status, i) => [status, i]));
const TABLE_METRICS = METRICS.filter(([metric]) => DATA.rows.some((row) => metric in row.metrics));
const COLUMNS = [
  ["status", "Status", (row) => rank.get(row.status) ?? 99], ["id", "Entry", (row) => row.id], ["backend", "Backend", (row) => engine(row)],
  ["setting", "Format", (row) => setting(row)], ["where", "Prompt or point", (row) => row.where], ["context", "Context", (row) => row.context, "n"],
  ["ratio", "Worst ratio", (row) => row.worst?.ratio ?? null, "n"],
  ...TABLE_METRICS.map(([metric, words]) => [metric, words, (row) => value(row, metric), "n"]),
  ["machine", "Machine", (row) => row.machine],
];
const open = new Set();

/** Unmeasured rows come last, whichever way the rest is sorted. */
function sorted(rows) {
  const [, , get] = COLUMNS.find(([name]) => name === state.sort) ?? COLUMNS[0];
  const sign = state.dir === "down" ? -1 : 1;
  return rows.map((row) => [get(row), row]).sort(([a, x], [b, y]) => {
    const none = (a === null || a === "") - (b === null || b === "");
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return none || sign * (a === null || a === "" ? 0 : order) || x.index - y.index;
  }).map(([, row]) => row);
}

function buildTable() {
  const heads = COLUMNS.map(([name, words, , kind]) => el("th", { scope: "col", "data-sort": name, class: kind },
    el("button", { type: "button", on: { click: () => sortBy(name, kind) } }, words)));
  byId("table").append(el("table", {}, el("caption", { class: "skip" }, "Measurements"), el("thead", {}, el("tr", {}, ...heads)), el("tbody")));
  byId("pager").append(el("button", { type: "button", id: "previous", on: { click: () => setState({ page: String(+state.page - 1) }) } }, "← Previous"),
    el("span", { id: "page", role: "status" }), el("button", { type: "button", id: "next", on: { click: () => setState({ page: String(+state.page + 1) }) } }, "Next →"),
    el("span", { class: "soft" }, "Sort by a column's head; an entry's name opens its samples."));
}

function sortBy(name, kind) {
  const first = kind === "n" ? "down" : "up";
  setState({ sort: name, dir: state.sort === name ? (state.dir === "up" ? "down" : "up") : first });
}

function showTable(rows) {
  const pages = Math.max(1, Math.ceil(rows.length / PAGE_ROWS)), page = Math.min(Math.max(1, Math.trunc(+state.page) || 1), pages);
  const shown = sorted(rows).slice((page - 1) * PAGE_ROWS, page * PAGE_ROWS);
  byId("table").querySelector("tbody").replaceChildren(...shown.flatMap((row) => open.has(row.index) ? [tableRow(row), detail(row)] : [tableRow(row)]));
  for (const th of document.querySelectorAll("[data-sort]")) {
    if (th.dataset.sort === state.sort) th.setAttribute("aria-sort", state.dir === "up" ? "ascending" : "descending");
    else th.removeAttribute("aria-sort");
  }
  byId("page").textContent = `page ${page} of ${pages}, ${plural(rows.length, "row")}`;
  byId("previous").disabled = page <= 1;
  byId("next").disabled = page >= pages;
}

function tableRow(row) {
  const name = el("button", { type: "button", "aria-expanded": String(open.has(row.index)), "data-row": row.index, on: { click: () => toggle(row) } }, row.id);
  const why = row.odd[0] ?? (Object.keys(row.metrics).length ? "" : row.reason.trim().split("\n").at(-1));
  const limit = row.worst ? `${row.worst.metric}, gate ${row.worst.gate}` : "";
  return el("tr", { class: "row" }, el("td", {}, badge(row.status, STATUS_WORDS[row.status] ?? row.status)),
    el("td", { class: "id" }, name, el("small", {}, why.length > 160 ? `${why.slice(0, 159)}…` : why)),
    el("td", {}, row.backend || "–", el("small", {}, row.version)), el("td", {}, setting(row) || "–"), el("td", {}, row.where || "–"),
    el("td", { class: "n" }, row.context ? row.context.toLocaleString("en") : "–"),
    el("td", { class: "n" }, row.worst ? row.worst.ratio.toFixed(3) : "–", el("small", {}, limit)),
    ...TABLE_METRICS.map(([metric]) => metricCell(row, metric)), el("td", {}, row.machine));
}

function metricCell(row, metric) {
  const figure = row.metrics[metric];
  if (!figure) return el("td", { class: "n none" }, "–");
  const [x, low, high, samples] = figure;
  return el("td", { class: "n" }, text(metric, x), el("small", {}, low === null ? "n = 1" : `±${percent((high - low) / 2 / x)}, n = ${samples.length}`));
}

function toggle(row) {
  if (!open.delete(row.index)) open.add(row.index);
  showTable(chosenRows());
  document.querySelector(`[data-row="${row.index}"]`)?.focus();
}

function detail(row) {
  const source = sourceOf(row), known = (v) => v !== null && v !== undefined && v !== "";
  const facts = [["Model", row.modelId || row.model], ["Reason", row.reason], ["Suspect", row.odd.join("\n")], ["Conditions", `${row.machine}, ${conditions(row)}`],
    ["Record", `${source.file}, ${row.created.replace("T", " ").slice(0, 19)} UTC, commit ${source.commit || "unknown"}, fingerprint ${source.fingerprint || "unknown"}`],
    ["Same tokens as the baseline", known(row.same) ? String(row.same) : ""], ["Batch equals solo", known(row.solo) ? String(row.solo) : ""], ["Note", row.note],
    ...row.verdicts.map((v) => [`Gate ${v.metric}`, `${v.outcome}: ${v.ratio === null ? text(v.metric, v.value) : `ratio ${v.ratio.toFixed(4)}`}` +
      `${v.interval ? `, interval ${v.interval.map((x) => x.toFixed(4)).join(" to ")}` : ""}, gate ${v.gate}, n = ${v.n}${v.reason ? `, ${v.reason}` : ""}`]),
    ...Object.entries(row.metrics).map(([metric, figure]) => [label(metric), `${text(metric, figure[0])}; ${spread(metric, figure)}`])];
  return el("tr", { class: "detail" }, el("td", { colspan: COLUMNS.length }, el("dl", {},
    ...facts.filter(([, said]) => known(said)).flatMap(([name, said]) => [el("dt", {}, name), el("dd", {}, said)]))));
}
