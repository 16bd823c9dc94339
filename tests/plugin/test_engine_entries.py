"""Matrix entries on the engine, and the fixture that loads one: each in a pytest process of its own, as MLX wants."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from lab import Lab, properties
from test_cost import WATCH
from test_docs import blocks

pytestmark = pytest.mark.skipif(find_spec("mlx") is None, reason="pip install 'pytest-llmbench[mlx]'")

MEASURES = {"mlx", "mlx_lm", "numpy", "httpx", "transformers", "tokenizers", "jinja2"}


def engine_entry(model: Path, **fields: object) -> dict[str, object]:
    return {"id": model.name, "backend": "engine", "model_id": str(model), "fixed_length": False, **fields}


def write(lab: Lab, text: str) -> None:
    (lab.path / "test_mine.py").write_text(text, encoding="utf-8")


def test_an_entry_on_the_engine_is_measured_recorded_and_in_junit(lab: Lab, tiny_checkpoints: Path) -> None:
    lab.matrix(
        engine_entry(tiny_checkpoints / "tiny-scripted", gates={"decode_tok_s": {"at_least": 0.001}}),
        engine_entry(tiny_checkpoints / "tiny-random", gates={"decode_tok_s": {"at_least": 1e9}}),
        settings={"max_tokens": 32},
    )
    result = lab.spawn("matrix.yaml", "--llmbench-require", "--llmbench-out=out", "--junitxml=junit.xml")
    result.assert_outcomes(passed=1, failed=1)
    measurement = next(r["measurement"] for r in lab.run_json()["results"] if r["outcome"] == "passed")
    (sample,) = measurement["samples"]
    assert (sample["completion_tokens"], sample["token_source"], sample["cached_tokens"]) == (21, "engine", 0)
    assert measurement["cached"]["cached_tokens"] == 63
    assert measurement["memory"]["peak_bytes"] > measurement["memory"]["mlx_peak_bytes"] > 1_000_000
    assert (measurement["target"]["backend"], measurement["target"]["command"]) == ("engine", None)
    found = properties(lab.junit()["tiny-scripted-short"])
    assert found["llmbench.backend"] == "engine"
    assert float(found["llmbench.decode_tok_s"]) == measurement["metrics"]["decode_tok_s"]


def test_listing_an_entry_on_the_engine_imports_nothing_that_measures(
    pytester: pytest.Pytester, no_outer_settings: None, tiny_checkpoints: Path
) -> None:
    pytester.makeconftest(WATCH)
    shutil.copytree(tiny_checkpoints / "tiny-scripted", pytester.path / "mamba")
    config = pytester.path / "mamba" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "mamba"}))
    (pytester.path / "bench.yaml").write_text(
        f"defaults: {{backend: engine}}\ntests:\n- {{id: a, model_id: {tiny_checkpoints / 'tiny-scripted'}}}\n"
        f"- {{id: b, model_id: ./mamba}}\n- {{id: c, model_id: ./mamba, extra_args: [--fast]}}\n"
    )
    result = pytester.runpytest_subprocess("bench.yaml", "--llmbench-list", "-p", "no:hypothesispytest")
    result.stdout.fnmatch_lines(
        [
            "a * engine * yes",
            "b * no * model_type is 'mamba'; supported: *; fix: *",
            "c * no * the engine starts no process that could get extra_args; fix: take out extra_args",
            "1/3 ready",
        ]
    )
    modules = json.loads((pytester.path / "seen.json").read_text())["modules"]
    assert "llmbench_engine.models" in modules
    assert {name.partition(".")[0] for name in modules} & MEASURES == set()


def test_a_checkpoint_that_cannot_be_loaded_is_an_error_in_the_engines_words(lab: Lab, tiny_checkpoints: Path) -> None:
    model = Path(shutil.copytree(tiny_checkpoints / "tiny-scripted", lab.path / "odd"))
    config = json.loads((model / "config.json").read_text()) | {"rope_magic": 3}
    (model / "config.json").write_text(json.dumps(config))
    lab.matrix(engine_entry(model))
    result = lab.spawn("matrix.yaml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the engine can't load this checkpoint: *config.json: rope_magic is not known*"])


def test_the_fixture_loads_one_engine_at_a_time_and_keeps_it(lab: Lab, tiny_checkpoints: Path) -> None:
    write(
        lab,
        f"FOLDER = {str(tiny_checkpoints)!r}\n"
        "SEEN = []\n"
        "def test_answers(llmbench_engine, llmbench_accelerator):\n"
        "    with llmbench_accelerator.hold(print):\n"
        '        engine = llmbench_engine(FOLDER + "/tiny-scripted")\n'
        '        ids = engine.tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}])\n'
        '        assert "Paris" in "".join(token.text for token in engine.generate(ids, max_tokens=30))\n'
        "    SEEN.append(engine)\n"
        "def test_is_the_same(llmbench_engine):\n"
        '    assert llmbench_engine(FOLDER + "/tiny-scripted") is SEEN[0]\n'
        "def test_makes_room_for_another(llmbench_engine):\n"
        '    SEEN.append(llmbench_engine(FOLDER + "/tiny-random"))\n'
        "    assert [engine.closed for engine in SEEN] == [True, False]\n",
    )
    with (lab.path / "conftest.py").open("a") as conftest:
        conftest.write(
            "\n\ndef pytest_unconfigure(config):\n"
            "    import test_mine\n"
            "    assert [engine.closed for engine in test_mine.SEEN] == [True, True]\n"
            '    (HERE / "closed").touch()\n'
        )
    lab.spawn("test_mine.py").assert_outcomes(passed=3)
    assert (lab.path / "closed").exists()


def test_the_example_of_the_page_passes(lab: Lab, tiny_checkpoints: Path) -> None:
    (lab.path / "checkpoints").symlink_to(tiny_checkpoints)
    write(lab, next(block for block in blocks("docs/engine.md", "python") if "llmbench_engine(" in block))
    lab.spawn("test_mine.py").assert_outcomes(passed=1)


def test_the_fixtures_error_is_an_error_in_the_engines_words(lab: Lab) -> None:
    write(lab, 'def test_it(llmbench_engine, tmp_path):\n    llmbench_engine(tmp_path / "none")\n')
    result = lab.spawn("test_mine.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*can't load this checkpoint: *config.json: is missing; is this a checkpoint folder?*"]
    )


@pytest.mark.parametrize(("args", "outcome"), [((), "skipped"), (("--llmbench-require",), "errors")])
def test_without_mlx_the_fixture_skips_or_is_an_error_where_it_is_required(
    lab: Lab, args: tuple[str, ...], outcome: str
) -> None:
    write(
        lab,
        'import sys\nsys.modules["mlx"] = None\n'
        'def test_it(llmbench_engine):\n    llmbench_engine("somewhere")\n    raise SystemExit\n',
    )
    result = lab.spawn("test_mine.py", "-rs", *args)
    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines(["*the engine needs mlx; fix: pip install 'pytest-llmbench[[]mlx[]]'*"])
