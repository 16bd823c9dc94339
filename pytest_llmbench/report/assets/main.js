let chosen = null;

function show() {
  showTheme();
  const rows = chosenRows(), key = JSON.stringify([state.q, ...FILTERS.map(([name]) => state[name])]);
  showFilters(rows);
  showVerdict();
  showTable(rows);
  if (key === chosen) return;
  chosen = key;
  showLeaders(rows);
  showPlots(rows);
}

readState();
showTheme();
buildHead();
buildVerdict();
buildMachines();
buildFilters();
buildLegend();
buildPlots();
buildTable();
watchMarks();
byId("theme").addEventListener("change", (event) => setState({ theme: event.target.value, page: state.page }));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
addEventListener("hashchange", () => { readState(); show(); });
byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("results").focus(); });
listeners.push(show);
show();
document.documentElement.dataset.ready = "yes";
