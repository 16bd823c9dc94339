const MOST_MODELS = 40;
const STEPS = [64, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144];
/** A context's column: the next common length, so that 32,766 tokens stand with 32k. */
const column = (n) => STEPS.find((step) => n <= step * 1.05) ?? STEPS.at(-1);

/** Metric, place and whether the greatest figure is the best; a record may hold one at lengths at which it lacks the other. */
const CONTESTS = [["decode_tok_s", "leaders", true], ["ttft_s", "leaders-ttft", false]];

function showLeaders(rows) {
  for (const contest of CONTESTS) showContest(rows, ...contest);
}

/** For each model and context the backend with the best figure; suspect figures don't compete. */
function showContest(rows, metric, where, most) {
  const fit = rows.filter((row) => value(row, metric) !== null && row.context && !row.level);
  const columns = distinct(fit, (row) => column(row.context)).sort((a, b) => a - b);
  const groups = d3.flatGroup(fit, (row) => row.model || row.modelId, (row) => row.machine);
  const place = byId(where);
  if (!groups.length) return place.replaceChildren(el("p", { class: "soft", style: "padding: 10px 16px" }, `No ${label(metric)} at a known context length among the chosen rows.`));
  const several = MACHINES.length > 1, head = ["Model", ...(several ? ["Machine"] : []), ...columns.map((n) => `≤ ${tokens(n)} tokens`)];
  const body = groups.slice(0, MOST_MODELS).map(([model, machine, own]) => el("tr", {}, el("td", { class: "model" }, model), several ? el("td", {}, machine) : null,
    ...columns.map((n) => leaderCell(own.filter((row) => column(row.context) === n), metric, most))));
  const more = groups.length > MOST_MODELS ? el("caption", {}, `${MOST_MODELS} of ${groups.length}: choose a model`) : null;
  place.replaceChildren(el("table", {}, more, el("thead", {}, el("tr", {}, ...head.map((h, i) => el("th", { scope: "col", class: i > several ? "n" : null }, h)))),
    el("tbody", {}, ...body)));
}

function leaderCell(rows, metric, most) {
  const sound = rows.filter((row) => !isSuspect(row)), odd = rows.length - sound.length;
  const better = (a, b) => (value(a, metric) - value(b, metric)) * (most ? -1 : 1);
  const [best, second] = d3.rollups(newest(sound), (own) => d3.sort(own, better)[0], (row) => row.backend).map(([, row]) => row).sort(better);
  if (!best) return el("td", { class: "n none" }, odd ? `${odd} suspect` : "–");
  const next = second ? runnerUp(best, second, metric) : "no other backend";
  return el("td", { class: "n" }, el("span", { class: "best" }, `${best.backend} ${text(metric, value(best, metric))}`),
    el("small", {}, setting(best)), el("small", {}, odd ? `${next}; ${odd} suspect` : next));
}

/** Of an entry that several records measured the last one: not the best day of all, nor what a newer version lost. */
const newest = (rows) => d3.groups(rows, (row) => [row.id, row.prompt, row.side].join("\n")).map(([, own]) => d3.greatest(own, (row) => row.created));

/** The next one, by how much it is behind, and whether the two can be told apart at all. */
function runnerUp(best, second, metric) {
  const [[a, aLow, aHigh], [b, bLow, bHigh]] = [best.metrics[metric], second.metrics[metric]];
  const alike = aLow !== null && bLow !== null && aLow <= bHigh && bLow <= aHigh;
  return `${alike ? "not clearly behind:" : "then"} ${second.backend} ${text(metric, b)} (${b < 2 * a ? signed(b / a - 1) : `×${number(b / a)}`})`;
}
