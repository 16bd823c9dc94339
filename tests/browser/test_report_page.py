"""The report page as a reader meets it, in Chromium."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from report_kit import (
    HOSTILE,
    Opened,
    crowded_page,
    history_page,
    hostile_page,
    parity_page,
    together_page,
    undecided_page,
)


def numbers(texts: list[str]) -> list[float]:
    return [float(text.split()[0].replace(",", "")) for text in texts if text != "–"]


def test_the_first_thing_said_is_which_gate_failed_and_by_how_much(opened: Opened) -> None:
    verdict = opened.page.locator("#verdict")
    expect(verdict.locator("h2")).to_have_text("10 gates failed in 6 results, the worst by 8.2 %")
    first = verdict.locator("li").first
    expect(first).to_contain_text("8.2 % below the gate")
    expect(first).to_contain_text("ratio 0.9000 (0.890 to 0.910), gate 0.98")


def test_the_fastest_backend_at_32k_is_read_off_and_a_suspect_figure_does_not_win(opened: Opened) -> None:
    row = opened.page.locator("#leaders tr", has_text="org/small")
    expect(row).to_contain_text("beta 50 tok/s")
    expect(row).to_contain_text("then alpha 40 tok/s (−20.0 %); 1 suspect")
    expect(opened.page.locator("#leaders thead")).to_contain_text("≤ 32k tokens")


def test_gates_and_results_are_counted_apart(page: Page, tmp_path: Path) -> None:
    page.goto(parity_page(tmp_path, "2026-10-31").as_uri())
    verdict = page.locator("#verdict")
    expect(verdict.locator("h2")).to_have_text("9 gates failed in 5 results, the worst by 1.6 %")
    expect(verdict.locator(".chips")).to_have_text("Of 207 results:5 failed189 passed13 skipped")


def test_a_record_without_decode_at_32k_tells_the_first_token_there(page: Page, tmp_path: Path) -> None:
    page.goto(parity_page(tmp_path, "2026-10-31").as_uri())
    expect(page.locator("#leaders thead")).not_to_contain_text("32k")
    expect(page.locator("#leaders-ttft thead")).to_contain_text("≤ 32k tokens")
    expect(page.locator("#leaders-ttft tr", has_text="Qwen3.8-27B-4bit")).to_contain_text(
        re.compile(r"(nuvec|mlx-lm) \d+ s(then|not clearly behind:) (nuvec|mlx-lm) \d+ s \(\+\d\.\d\s%\)")
    )


def test_several_requests_at_once_are_no_decode_by_context_but_have_a_plot(page: Page, tmp_path: Path) -> None:
    page.goto(together_page(tmp_path).as_uri())
    expect(page.locator("#leaders .best")).to_have_text(re.compile("50 tok/s$"))
    expect(page.locator("#plot-context [data-mark]")).to_have_count(1)
    expect(page.locator("#plot-streams [data-mark]")).to_have_count(1)


def test_of_an_entry_in_several_records_the_last_one_competes(page: Page, tmp_path: Path) -> None:
    page.goto(history_page(tmp_path, [50.0, 90.0, 47.0]).as_uri())
    expect(page.locator("#leaders .best")).to_have_text(re.compile("47 tok/s$"))


def test_only_gated_ratios_have_a_gate(page: Page, tmp_path: Path) -> None:
    page.goto(parity_page(tmp_path, "2026-10-31").as_uri())
    for name, gates in (("memory: peak_bytes (not gated)", 0), ("decode: tok_s", 1)):
        figure = page.locator("#plot-parity figure", has=page.get_by_role("heading", name=name, exact=True))
        expect(figure.locator('svg [stroke="var(--bad)"][stroke-dasharray] line')).to_have_count(gates)


def test_the_way_back_undoes_a_filter_and_the_skip_link_keeps_it(opened: Opened) -> None:
    page = opened.page
    page.get_by_label("Backend").select_option("alpha")
    page.locator('[data-sort="decode_tok_s"] button').click()
    page.locator("a.skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#results")).to_be_focused()
    assert page.url.endswith("#sort=decode_tok_s&dir=down&backend=alpha")
    page.go_back()
    page.go_back()
    expect(page.get_by_label("Backend")).to_have_value("")
    expect(page.locator('[data-sort="status"]')).to_have_attribute("aria-sort", "ascending")
    page.go_forward()
    expect(page.get_by_label("Backend")).to_have_value("alpha")


def test_a_machine_that_was_slowed_down_is_named(opened: Opened) -> None:
    expect(opened.page.locator("#machines .held")).to_have_text(
        re.compile(r"^YES, in 1 of 9 measurements \(.*/new\.json\)$")
    )
    expect(opened.page.locator("#machines")).to_contain_text("thermal state not recorded")


def test_records_of_one_machine_stand_in_one_line(opened: Opened) -> None:
    machines = opened.page.locator("#machines tbody tr")
    expect(machines).to_have_count(2)
    expect(machines.first).to_contain_text("2026-01-01 00:00 to 2026-01-02 00:00")


def test_a_column_sorts_by_number_both_ways_and_the_unmeasured_stay_last(opened: Opened) -> None:
    opened.go("machine=Chip+A")
    head = opened.page.locator('[data-sort="decode_tok_s"]')
    head.locator("button").click()
    down = opened.column("decode_tok_s")
    expect(head).to_have_attribute("aria-sort", "descending")
    head.locator("button").click()
    up = opened.column("decode_tok_s")
    assert numbers(down) == [9999, 1200, 1000, 90, 80, 70, 50, 40, 9]
    assert numbers(up) == numbers(down)[::-1]
    assert down[-2:] == up[-2:] == ["–", "–"]


def test_search_and_filters_narrow_the_table_and_stand_in_the_address(opened: Opened) -> None:
    opened.page.get_by_label("Search").fill("LONG beta")
    expect(opened.page.locator("#count")).to_contain_text(re.compile("^1 of "))
    assert opened.column("id") == ["long-beta"]
    opened.page.get_by_label("Search").fill("")
    opened.page.get_by_label("Backend").select_option("alpha")
    expect(opened.page.locator("#count")).to_contain_text(re.compile("^4 of "))
    assert "backend=alpha" in opened.page.url
    opened.page.locator("#clear").click()
    assert "#" not in opened.page.url


def test_an_address_brings_the_same_view_back(opened: Opened) -> None:
    opened.page.goto(f"{opened.url}#backend=alpha&sort=decode_tok_s&dir=up&theme=dark")
    opened.page.reload()
    assert opened.column("id") == ["slow", "long-alpha", "quick", "quick"]
    expect(opened.page.locator("html")).to_have_attribute("data-theme", "dark")
    opened.requests[1:] = []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_keeps_its_contrast_in_both_themes(opened: Opened, theme: str) -> None:
    opened.page.get_by_label("Theme").select_option(theme)
    script = """() => {
        const level = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map((x) => {
            const c = x / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const ground = (node) => { for (; node; node = node.parentElement) {
            const color = getComputedStyle(node).backgroundColor;
            if (!/, 0\\)$|transparent/.test(color)) return color; }
            return 'rgb(255, 255, 255)'; };
        const texts = 'h1, .soft, .badge, td, td small, th, label, .held, button:enabled';
        return [...document.querySelectorAll(texts)].map((node) => {
            const [a, b] = [level(getComputedStyle(node).color), level(ground(node))].sort((x, y) => y - x);
            return [(a + 0.05) / (b + 0.05), node.outerHTML.slice(0, 80)]; }).filter(([ratio]) => ratio < 4.5);
    }"""
    opened.page.wait_for_timeout(300)  # buttons fade from one theme into the other
    assert opened.page.evaluate(script) == []
    assert f"theme={theme}" in opened.page.url


def test_the_theme_follows_the_system_until_one_is_chosen(opened: Opened) -> None:
    page = opened.page
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_strings_of_a_record_are_text_and_never_markup(opened: Opened) -> None:
    page = opened.page
    expect(page).to_have_title("LLM benchmarks")
    opened.go("q=hostile")
    page.locator('[data-row] >> text="hostile"').click()
    expect(page.locator(".detail")).to_contain_text(HOSTILE)
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    expect(page).to_have_title("LLM benchmarks")


def test_a_record_that_is_hostile_all_over_is_text_all_over(page: Page, tmp_path: Path) -> None:
    opened = Opened(page, hostile_page(tmp_path))
    for row in range(0, page.locator("[data-row]").count(), 10):
        page.locator("[data-row]").nth(row).click()
    opened.go("theme=dark")
    for place in ("#verdict", "#machines", "#leaders", "#table .detail", "#plot-memory [data-mark]", "#filters"):
        assert any(
            HOSTILE in text
            for text in page.locator(place).evaluate_all("found => found.map((n) => n.textContent + n.ariaLabel)")
        ), place
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    expect(page).to_have_title("LLM benchmarks")
    assert opened.requests == [opened.url]
    assert opened.complaints == []


def test_what_was_not_measured_is_listed_with_its_reason_and_never_drawn(opened: Opened) -> None:
    opened.go("q=absent")
    assert opened.column("decode_tok_s") == ["–"]
    expect(opened.page.locator("#table")).to_contain_text("not installed: pip install beta")
    expect(opened.page.locator("#plot-context")).to_contain_text("Nothing to draw")
    assert opened.page.locator("[data-mark]").count() == 0


@pytest.mark.parametrize(
    ("plot", "said"),
    [
        ("context", "3 samples, range"),
        ("parity", "gate 0.98: failed"),
        ("cached", "TTFT cached: 20 ms"),
        ("memory", "Memory: 2.00 GiB"),
        ("streams", "All streams: "),
        ("history", "20.0\u00a0% against the first record; commit abc123"),
    ],
)
def test_every_plot_has_marks_that_tell_their_samples_and_conditions(opened: Opened, plot: str, said: str) -> None:
    card = opened.page.locator(f"#plot-{plot}")
    card.scroll_into_view_if_needed()
    expect(card.locator("[data-mark]").first).to_be_attached()
    stories = card.locator("[data-mark]").evaluate_all("marks => marks.map((m) => m.getAttribute('aria-label'))")
    assert any(said in story for story in stories)
    assert all("sample" in story and " UTC" in story for story in stories)
    assert all("power" in story.lower() for story in stories)


def test_a_change_of_level_is_drawn_where_it_is_and_said_in_words(page: Page, tmp_path: Path) -> None:
    opened = Opened(page, history_page(tmp_path, [50.0 + 0.1 * (day % 3) for day in range(9)] + [47.0, 47.1, 47.2]))
    card = page.locator("#plot-history")
    expect(card.locator("table.trends tbody tr")).to_have_count(1)
    expect(card.locator("table.trends")).to_contain_text("2026-01-10 00:00, abc123")
    expect(card.locator(".held")).to_have_text("50.1 tok/s → 47.1 tok/s (−6.0 %), worse")
    expect(card.locator("svg text", has_text="−6.0 %")).to_be_attached()
    shifted = card.locator('[data-mark][aria-label*="From here on another level: 50.1 tok/s → 47.1 tok/s"]')
    expect(shifted).to_have_count(1)
    expect(shifted).to_have_attribute("aria-label", re.compile("2026-01-10"))
    expect(page.locator("#verdict")).to_contain_text("1 figure got worse over the records")
    assert opened.complaints == []


def test_few_records_are_said_to_be_too_few_for_a_change(page: Page, tmp_path: Path) -> None:
    page.goto(history_page(tmp_path, [50.0] * 4 + [40.0] * 3).as_uri())
    expect(page.locator("#plot-history")).to_contain_text("looked for from 8 records of a machine on")
    expect(page.locator("table.trends")).to_have_count(0)
    expect(page.locator("#verdict")).not_to_contain_text("over the records")


def test_a_scale_is_made_for_the_inconclusive_too(page: Page, tmp_path: Path) -> None:
    page.goto(undecided_page(tmp_path, slow=10.0, quick=100.0).as_uri())
    mark = page.locator('#plot-context [data-mark][aria-label*="Decode: 100 tok/s"]')
    top = page.locator("#plot-context svg").evaluate("""(svg) => {
        const ticks = [...svg.querySelectorAll('[aria-label="y-axis tick label"] text')];
        return Math.max(...ticks.map((tick) => +tick.textContent.replace(',', '')));
    }""")
    expect(mark).to_have_attribute("fill", "var(--card)")
    assert top >= 100


def test_a_model_of_two_records_has_a_line_for_each_in_the_parity_plot(page: Page, tmp_path: Path) -> None:
    page.goto(parity_page(tmp_path, "2026-10-31", "2026-11-01").as_uri())
    names = page.locator("#plot-parity figure").first.locator('[aria-label="y-axis tick label"]')
    expect(names).to_contain_text("Qwen3-0.6B-4bit, 2026-10-31")
    expect(names).to_contain_text("Qwen3-0.6B-4bit, 2026-11-01")


def test_a_suspect_figure_is_hollow_and_a_failed_one_ringed(opened: Opened) -> None:
    card = opened.page.locator("#plot-context")
    card.scroll_into_view_if_needed()
    odd = card.locator('[data-mark][aria-label*="suspect: too fast"]')
    failed = card.locator('[data-mark][aria-label*="failed: worse"]')
    expect(odd).to_have_attribute("fill", "var(--card)")
    expect(failed).to_have_attribute("stroke", "var(--bad)")


def test_the_keyboard_reaches_filters_sorting_details_and_marks(opened: Opened) -> None:
    page = opened.page
    page.keyboard.press("Tab")
    expect(page.locator("a.skip")).to_be_focused()
    page.locator('[data-sort="ratio"] button').focus()
    page.keyboard.press("Enter")
    expect(page.locator('[data-sort="ratio"]')).to_have_attribute("aria-sort", "descending")
    page.locator("[data-row]").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("[data-row]").first).to_have_attribute("aria-expanded", "true")
    expect(page.locator("[data-row]").first).to_be_focused()
    marks = page.locator("#plot-memory [data-mark]")
    page.locator("#plot-memory").scroll_into_view_if_needed()
    expect(marks.first).to_have_attribute("tabindex", "0")
    marks.first.focus()
    page.keyboard.press("ArrowRight")
    expect(marks.nth(1)).to_be_focused()
    expect(page.locator("#tip")).to_be_visible()
    expect(page.locator("#tip")).to_contain_text("3 samples")


def test_the_page_fits_a_phone(opened: Opened) -> None:
    opened.page.set_viewport_size({"width": 390, "height": 800})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_page_keeps_its_height_while_a_reader_scrolls(opened: Opened) -> None:
    script = """async () => {
        const heights = [document.body.scrollHeight];
        for (let y = 0; y < heights[0]; y += 500) {
            scrollTo(0, y);
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            heights.push(document.body.scrollHeight);
        }
        return [...new Set(heights)].length;
    }"""
    assert opened.page.evaluate(script) == 1


def test_a_plot_that_draws_less_than_there_is_says_so(page: Page, tmp_path: Path) -> None:
    page.goto(crowded_page(tmp_path, 1300).as_uri())
    expect(page.locator("#plot-memory")).to_contain_text("1,200 of 1,300 marks drawn")
    expect(page.locator("#plot-context")).to_contain_text("400 of 1,300 marks drawn")
    assert page.locator("#plot-memory [data-mark]").count() == 1200
    expect(page.locator("#count")).to_contain_text("1,300 of 1,300 rows")
