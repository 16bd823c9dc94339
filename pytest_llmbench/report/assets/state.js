/** Everything that the reader chose is in the address, so that a link shows the same. */
const FILTERS = [
  ["model", "Model", (row) => row.modelId || row.model], ["backend", "Backend", (row) => row.backend],
  ["format", "Format", (row) => row.fmt], ["quant", "Quantization", (row) => row.quant], ["kv", "KV cache", (row) => row.kv],
  ["prompt", "Prompt or point", (row) => row.where], ["machine", "Machine", (row) => row.machine],
  ["version", "Version", (row) => row.version], ["status", "Status", (row) => row.status],
];
const DEFAULTS = { q: "", sort: "status", dir: "up", page: "1", theme: "" };
const state = { ...DEFAULTS, ...Object.fromEntries(FILTERS.map(([name]) => [name, ""])) };
const listeners = [];

function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of Object.keys(state)) state[name] = given.get(name) ?? DEFAULTS[name] ?? "";
}

/** `step`: whether the way back leads to what was shown before; not from each letter of a search. */
function setState(change, { step = true } = {}) {
  if (!("page" in change)) change = { ...change, page: "1" };
  Object.assign(state, change);
  const said = Object.entries(state).filter(([name, x]) => x !== (DEFAULTS[name] ?? ""));
  const query = new URLSearchParams(said).toString();
  const address = query ? `#${query}` : location.pathname + location.search;
  if (step && query !== location.hash.slice(1)) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  for (const listener of listeners) listener();
}

function chosenRows({ except } = {}) {
  const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  const active = FILTERS.filter(([name]) => state[name] !== "" && name !== except);
  return DATA.rows.filter((row) => active.every(([name, , get]) => String(get(row)) === state[name]) &&
    words.every((word) => row.text.includes(word)));
}

function buildFilters() {
  const form = byId("filters");
  form.addEventListener("submit", (event) => event.preventDefault());
  const search = el("input", { type: "search", id: "q", placeholder: "any word", autocomplete: "off" });
  let wait = 0;
  search.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(() => setState({ q: search.value }, { step: false }), 120); });
  form.append(el("label", {}, "Search", search));
  for (const [name, words, get] of FILTERS) {
    const choices = distinct(DATA.rows, get);
    if (choices.length < 2) continue;
    const select = el("select", { id: `f-${name}`, on: { change: (event) => setState({ [name]: event.target.value }) } },
      el("option", { value: "" }, "all"), ...choices.map((x) => el("option", { value: x }, name === "status" ? STATUS_WORDS[x] ?? x : x)));
    form.append(el("label", {}, words, select));
  }
  form.append(el("button", { type: "button", id: "clear", on: { click: clearFilters } }, "Clear"), el("span", { id: "count", role: "status" }));
}

const clearFilters = () => setState({ q: "", ...Object.fromEntries(FILTERS.map(([name]) => [name, ""])) });

function showFilters(rows) {
  if (byId("q") !== document.activeElement) byId("q").value = state.q;
  for (const [name] of FILTERS) if (byId(`f-${name}`)) byId(`f-${name}`).value = state[name];
  byId("count").textContent = `${rows.length.toLocaleString("en")} of ${plural(DATA.rows.length, "row")}`;
}

function showTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = state.theme || (dark ? "dark" : "light");
  byId("theme").value = state.theme;
}
