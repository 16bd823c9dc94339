"""`ci/docs`: its reference pages are those of today's code, and the site is built without a warning, or not at all."""

from __future__ import annotations

import ast
import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from mdit_py_plugins.anchors import anchors_plugin

from doc_pages import PAGES, ROOT
from pytest_llmbench import matrix, matrix_fields
from pytest_llmbench.errors import MatrixError
from pytest_llmbench.matrix_file import load
from reference import pages, schemas, text, variables, words, yaml_fields

DOCS = ROOT / "docs"
STRICT = ["--quiet", "--fail-on-warning", "--keep-going", "--nitpicky", "--fresh-env", "--builder", "html"]


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", *STRICT, str(source), str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The pages, to be spoilt; beside them what they link to."""
    for name in ("examples", "pytest_llmbench/schema"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return Path(shutil.copytree(DOCS, tmp_path / "docs"))


def test_the_reference_pages_are_those_of_todays_code() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in pages.FOLDER.glob("*.md")}
    assert written == pages.pages(), "run ci/docs, or PYTHONPATH=ci python -m reference, and commit docs/reference"


def test_pages_that_are_made_no_longer_are_removed(tmp_path: Path) -> None:
    (tmp_path / "old.md").write_text("old")
    pages.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(pages.pages())


def test_the_script_builds_as_it_is_built_here() -> None:
    assert f"sphinx-build {' '.join(STRICT)} docs" in (ROOT / "ci/docs").read_text(encoding="utf-8")


def test_the_site_has_every_page_and_asks_no_other_host_for_anything(tmp_path: Path) -> None:
    done = build(DOCS, tmp_path)
    assert done.returncode == 0, done.stderr
    names = {page.removeprefix("docs/").replace(".md", ".html") for page in PAGES if page.startswith("docs/")}
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    navigation = set(re.findall(r'class="reference internal" href="([^"#]+)"', index))
    assert names - {"index.html"} <= navigation
    for page in tmp_path.rglob("*.html"):
        assert not re.findall(r'(?:src|<link[^>]*href)="https?://', page.read_text(encoding="utf-8")), page


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("[gone](gone.md)", "gone.md"),
        ("[gone](matrix.md#gone)", "gone"),
        ("# Two\n\n#### Four", "level"),
    ],
)
def test_a_page_with_a_fault_is_not_built(copy: Path, tmp_path: Path, line: str, complaint: str) -> None:
    with (copy / "report.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{line}\n")
    done = build(copy, tmp_path / "out")
    assert done.returncode != 0
    assert "report.md" in done.stderr
    assert complaint in done.stderr


def test_a_page_that_the_index_forgets_is_a_fault(copy: Path, tmp_path: Path) -> None:
    (copy / "lonely.md").write_text("# Lonely\n")
    done = build(copy, tmp_path / "out")
    assert done.returncode != 0
    assert "lonely.md" in done.stderr


def links(page: Path) -> set[str]:
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    inner = [child for token in tokens for child in token.children or ()]
    found = [token.attrGet("href") or token.attrGet("src") for token in inner if token.type in ("link_open", "image")]
    return {str(target) for target in found}


def anchors(page: Path) -> set[str]:
    reader = MarkdownIt("commonmark").use(anchors_plugin, max_level=6)
    tokens = reader.parse(page.read_text(encoding="utf-8"))
    return {str(token.attrGet("id")) for token in tokens if token.type == "heading_open"}


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_what_a_page_links_to_is_there(name: str) -> None:
    page = ROOT / name
    for target in links(page):
        path, _, anchor = target.partition("#")
        if path.startswith(("http://", "https://")):
            continue
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert there.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(there), target


def test_a_key_that_no_guide_explains_makes_no_page() -> None:
    guide = text.meanings("matrix.md", "settings")
    assert guide["cooldown"].startswith("seconds")
    with pytest.raises(ValueError, match=r"docs/matrix\.md has no row for `nap`"):
        text.explained(("cooldown", "nap"), guide, "matrix.md")


@given(st.text())
def test_whatever_a_docstring_says_stays_in_its_cell(words: str) -> None:
    page = text.table(("a", "b"), [("1", text.prose(words)), ("2", "3")])
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    cells = [inline for opened, inline in itertools.pairwise(tokens) if opened.type == "td_open"]
    assert len(cells) == 4
    assert [cells[i].content for i in (0, 2, 3)] == ["1", "2", "3"]


def test_links_of_a_guide_are_turned_for_the_folder_below() -> None:
    assert "](../engine.md#in-the-matrix-and-in-tests)" in text.meanings("matrix.md", "entries")["backend"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('os.environ["A"]', {"A"}),
        ('os.environ.get("A", "B")', {"A"}),
        ('os.getenv("A")', {"A"}),
        ('"A" in environ', {"A"}),
        ('KEY: Final = "A"\nenviron.get(KEY)', {"A"}),
        ('KEY, OTHER = "A", "B"\nenviron.get(OTHER)', {"B"}),
        ("from pytest_llmbench.backends.ollama_dialect import HOST\nenviron.get(HOST)", {"OLLAMA_HOST"}),
        ('for name in names:\n    environ.get(name)\n{"A": 1}.get("B")', set()),
    ],
)
def test_variables_are_found_in_each_form_of_looking_one_up(source: str, found: set[str]) -> None:
    assert set(variables.variables(ast.parse(source))) == found


@pytest.mark.parametrize("name", ["runs", "warmup", "max_tokens", "bench_port"])
def test_bounds_on_the_page_are_those_that_are_kept(name: str, tmp_path: Path) -> None:
    said = words.described(matrix_fields.setting_readers)[name]
    least = int(re.findall(r"\d+", said)[0])

    def read(value: int) -> matrix.Settings:
        path = tmp_path / "m.yaml"
        path.write_text(f"settings: {{{name}: {value}}}\ntests: [{{id: a, backend: x, model_id: o/m}}]\n")
        return load(path, backends=["x"]).settings

    assert getattr(read(least), name) == least
    with pytest.raises(MatrixError, match="whole number"):
        read(least - 1)


def test_defaults_are_shown_as_yaml_has_them() -> None:
    page = yaml_fields.parity_page()
    assert "`{levels: [1, 4, 8], prompt_tokens: 512, max_tokens: 128}`" in page
    assert re.search(r"^\| `kind` \|.*\| needed \|", page, re.MULTILINE)


def test_a_schema_page_has_the_keys_of_inner_objects_under_their_paths() -> None:
    page = schemas.pages()["schema-run.md"]
    assert "| `sources.*.file` | string | Path of the merged file. |" in page
    assert "| `results` | array of [result](#result) |" in page
