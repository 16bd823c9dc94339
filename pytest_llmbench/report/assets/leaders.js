const MOST_MODELS = 40;
const STEPS = [64, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144];
/** A context's column: the next common length, so that 32,766 tokens stand with 32k. */
const column = (n) => STEPS.find((step) => n <= step * 1.05) ?? STEPS.at(-1);

/** For each model and context the backend with the most tokens a second; suspect figures don't compete. */
function showLeaders(rows) {
  const fit = rows.filter((row) => value(row, "decode_tok_s") !== null && row.context && row.section !== "concurrency");
  const columns = distinct(fit, (row) => column(row.context)).sort((a, b) => a - b);
  const groups = d3.group(fit, (row) => `${row.model || row.modelId}\n${row.machine}`, (row) => column(row.context));
  const place = byId("leaders");
  if (!groups.size) return place.replaceChildren(el("p", { class: "soft", style: "padding: 10px 16px" }, "No decode speed among the chosen rows."));
  const head = ["Model", "Machine", ...columns.map((n) => `≤ ${tokens(n)} tokens`)];
  const body = [...groups].slice(0, MOST_MODELS).map(([key, cells]) => {
    const [model, machine] = key.split("\n");
    return el("tr", {}, el("td", {}, model), el("td", {}, machine), ...columns.map((n) => leaderCell(cells.get(n) ?? [])));
  });
  const more = groups.size > MOST_MODELS ? el("caption", {}, `${MOST_MODELS} of ${groups.size}: choose a model`) : null;
  place.replaceChildren(el("table", {}, more, el("thead", {}, el("tr", {}, ...head.map((h, i) => el("th", { scope: "col", class: i > 1 ? "n" : null }, h)))),
    el("tbody", {}, ...body)));
}

function leaderCell(rows) {
  const odd = rows.filter((row) => row.status === "suspect" || row.odd.length).length;
  const sound = rows.filter((row) => !row.odd.length);
  const best = d3.rollups(sound, (own) => own.reduce((a, b) => (value(b, "decode_tok_s") > value(a, "decode_tok_s") ? b : a)), (row) => row.backend)
    .map(([, row]) => row).sort((a, b) => value(b, "decode_tok_s") - value(a, "decode_tok_s"));
  if (!best.length) return el("td", { class: "n none" }, odd ? `${odd} suspect` : "–");
  const next = best[1] ? `then ${best[1].backend} ${text("decode_tok_s", value(best[1], "decode_tok_s"))}` : "no other backend";
  return el("td", { class: "n" }, el("span", { class: "best" }, `${best[0].backend} ${text("decode_tok_s", value(best[0], "decode_tok_s"))}`),
    el("small", {}, setting(best[0])), el("small", {}, odd ? `${next}; ${odd} suspect` : next));
}
