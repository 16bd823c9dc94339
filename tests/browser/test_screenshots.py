"""`ci/screenshots`, and the pictures that it made: small, and on the pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageStat
from report_kit import ROOT

FOLDER = ROOT / "docs" / "screenshots"
NAMES = [f"{name}-{theme}.png" for name in ("demo", "record", "results") for theme in ("dark", "light")]
MOST_BYTES = 150_000


def screenshots(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "ci" / "screenshots"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def brightness(path: Path) -> float:
    with Image.open(path) as image:
        return ImageStat.Stat(image.convert("L")).mean[0]


@pytest.mark.usefixtures("browser")  # says what to install where there is no Chromium
def test_the_script_makes_a_light_and_a_dark_picture(tmp_path: Path) -> None:
    done = screenshots("record", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["record-dark.png", "record-light.png"]
    assert brightness(tmp_path / "record-dark.png") < 64
    assert brightness(tmp_path / "record-light.png") > 192


def test_a_picture_that_there_isnt_is_wrong_use(tmp_path: Path) -> None:
    done = screenshots("nothing", "--out", tmp_path)
    assert done.returncode == 2
    assert "there are: record, results, demo" in done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_picture_is_small(name: str) -> None:
    assert (FOLDER / name).stat().st_size < MOST_BYTES
    with Image.open(FOLDER / name) as image:
        assert image.width == 1280


def test_the_readme_shows_each_picture_and_no_other() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"docs/screenshots/([\w.-]+)", text))) == NAMES
    assert sorted(path.name for path in FOLDER.iterdir()) == NAMES
