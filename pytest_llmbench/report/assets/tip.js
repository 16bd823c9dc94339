/** One box that says what a mark stands for: under the pointer, or beside the mark that has the focus. */
const tip = byId("tip");

function showTip(mark) {
  tip.textContent = mark.getAttribute("aria-label");
  tip.hidden = false;
  const at = mark.getBoundingClientRect(), box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, at.right + 10), innerWidth - box.width - 8);
  const below = at.bottom + 10 + box.height < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? at.bottom + 10 : Math.max(8, at.top - box.height - 10)}px`;
}

const hideTip = () => { tip.hidden = true; };

/** Makes a plot one stop of the Tab key, with the arrow keys between its marks. */
function reachable(svg) {
  const marks = [...svg.querySelectorAll("[aria-label][data-mark]")];
  marks.forEach((mark, i) => { mark.setAttribute("tabindex", i === 0 ? "0" : "-1"); mark.setAttribute("role", "img"); });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const from = marks.indexOf(document.activeElement);
    if (event.key === "Escape") hideTip();
    const to = event.key === "Home" ? 0 : event.key === "End" ? marks.length - 1 : step ? from + step : -1;
    if (from < 0 || !(to in marks)) return;
    event.preventDefault();
    marks[from].setAttribute("tabindex", "-1");
    marks[to].setAttribute("tabindex", "0");
    marks[to].focus();
  });
}

function watchMarks() {
  const markOf = (event) => event.target.closest?.("[data-mark]");
  document.addEventListener("pointerover", (event) => { const mark = markOf(event); if (mark) showTip(mark); });
  document.addEventListener("pointerout", (event) => { if (markOf(event)) hideTip(); });
  document.addEventListener("focusin", (event) => { const mark = markOf(event); if (mark) showTip(mark); });
  document.addEventListener("focusout", (event) => { if (markOf(event)) hideTip(); });
  addEventListener("scroll", hideTip, { passive: true });
}
