from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.errors import RecordError
from pytest_llmbench.parity import judge
from pytest_llmbench.parity_json import to_json
from pytest_llmbench.parity_record import ParityRecord, read_parity_record
from pytest_llmbench.parity_summary import summary_lines

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "matrix/records/parity_m4_pro.json"
SCHEMAS = ROOT / "pytest_llmbench/schema"

Path_ = tuple[str | int, ...]


def load() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return data


def walk(node: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    yield path, node
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from walk(child, (*path, key))


def small() -> dict[str, Any]:
    """A plain and a partial model, so that every kind of node is there and reading stays quick."""
    data = load()
    data["models"] = [data["models"][0], data["models"][7]]
    return data


def converted() -> dict[str, Any]:
    record = read_parity_record(RECORD)
    return json.loads(json.dumps(to_json(record), allow_nan=False))  # type: ignore[no-any-return]


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def put(data: Any, path: Path_, value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


def remove(data: Any, path: Path_) -> None:
    for key in path[:-1]:
        data = data[key]
    del data[path[-1]]


def save(data: Any, folder: Path) -> Path:
    file = folder / "record.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    return file


def message(data: Any, folder: Path) -> str:
    with pytest.raises(RecordError) as caught:
        read_parity_record(save(data, folder))
    return str(caught.value)


def test_the_saved_record_reads_whole() -> None:
    record = read_parity_record(RECORD)
    assert (record.schema, record.version) == ("nuvec-parity-record", 1)
    assert (record.candidate.name, record.candidate.version) == ("nuvec", "0.5.0")
    assert (record.baseline.name, record.baseline.version) == ("mlx-lm", "0.32.2")
    assert (record.candidate_name, record.baseline_name) == ("nuvec", "mlx-lm")
    assert record.created.isoformat() == "2026-10-31T13:14:24+00:00"
    assert (record.gate, record.goal, len(record.models)) == (0.98, 1.0, 12)
    gated = [item for item in record.results if item.gated]
    assert sum(item.ratio is not None for item in gated) == 254


def test_results_without_a_ratio_carry_the_records_reason() -> None:
    missing = [item for item in read_parity_record(RECORD).results if item.ratio is None]
    cold = [item for item in missing if item.point == "cold"]
    long = [item for item in missing if item.point == "261952"]
    assert (len(missing), len(cold), len(long)) == (26, 24, 2)
    assert {item.reason for item in cold} == {"purge unavailable (needs passwordless sudo)"}
    assert all("Insufficient Memory" in item.reason for item in long)
    assert all(item.candidate is not None and item.baseline is None for item in long)


def test_result_ids_are_unique() -> None:
    ids = [item.id for item in read_parity_record(RECORD).results]
    assert len(ids) == len(set(ids)) == 280 + 2 * 49


def test_the_records_own_ratios_and_passes_follow_from_its_samples() -> None:
    results = read_parity_record(RECORD).results
    for item in results:
        ratio = item.ratio
        assert item.stored_ratio == (None if ratio is None else round(ratio, 4)), item.id
    for (path, node), item in zip(metric_nodes(load()), results, strict=True):
        assert node["ratio"] == item.stored_ratio, path
        if "gate_pass" in node:
            assert item.ratio is not None
            assert node["gate_pass"] == (item.ratio >= 0.98), path
            assert node["goal_pass"] == (item.ratio >= 1.0), path


def metric_nodes(data: dict[str, Any]) -> list[tuple[Path_, dict[str, Any]]]:
    return [(path, node) for path, node in walk(data["models"]) if isinstance(node, dict) and "ratio" in node]


def test_the_summary_computed_from_samples_is_the_records_summary() -> None:
    record = read_parity_record(RECORD)
    assert json.dumps(record.summary().to_json()) == json.dumps(load()["summary"])


def test_both_schemas_accept_what_is_theirs_and_refuse_the_other() -> None:
    ours, theirs = validator("parity-record"), validator("nuvec-parity-record")
    theirs.validate(load())
    ours.validate(converted())
    assert not ours.is_valid(load())
    assert not theirs.is_valid(converted())


def test_a_record_converted_to_our_schema_reads_back_equal(tmp_path: Path) -> None:
    original = read_parity_record(RECORD)
    again = read_parity_record(save(converted(), tmp_path))
    assert (again.schema, again.version) == ("llmbench-parity-record", 1)
    assert (again.results, again.models) == (original.results, original.models)
    assert (again.candidate, again.baseline, again.created) == (
        original.candidate,
        original.baseline,
        original.created,
    )
    assert again.stored_summary == original.stored_summary
    assert to_json(again) == to_json(original)


def test_memory_gated_by_a_run_stays_gated_in_its_record(tmp_path: Path) -> None:
    data = converted()
    peak = data["models"][0]["memory"]["load"]["peak_bytes"]
    peak.update(gated=True, gate_pass=True, goal_pass=False)
    record = read_parity_record(save(data, tmp_path))
    assert [item.id for item in record.results if item.gated and item.section == "memory"] == [
        "Qwen3-0.6B-4bit-memory-load-peak_bytes"
    ]
    assert to_json(record)["models"] == data["models"]


def test_models_of_two_owners_with_one_name_have_distinct_ids(tmp_path: Path) -> None:
    data = small()
    data["models"][1]["id"] = "other/Qwen3-0.6B-4bit"
    ids = [item.id for item in read_parity_record(save(data, tmp_path)).results]
    assert len(ids) == len(set(ids))
    assert "other/Qwen3-0.6B-4bit-decode-r1-tok_s" in ids


TOK_S: Path_ = ("models", 0, "decode", 0, "tok_s")
WHERE = "models[0].decode[0].tok_s"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema",), "other-record", "schema: schema 'other-record' is no parity record's"),
        (("schema_version",), 2, "schema_version: version 2 of 'nuvec-parity-record' is unknown"),
        (("schema_version",), True, "schema_version: expected a whole number, found true"),
        (("models",), [], "models: is an empty array"),
        (
            ("models", 1, "id"),
            "mlx-community/Qwen3-0.6B-4bit",
            "models[1].id: model 'mlx-community/Qwen3-0.6B-4bit'",
        ),
        (("models", 0, "id"), "../x y", "models[0].id: '../x y' isn't a model id"),
        ((*TOK_S, "nuvec", "samples"), [], f"{WHERE}.nuvec.samples: is an empty array"),
        ((*TOK_S, "nuvec", "samples", 0), -1, f"{WHERE}.nuvec.samples[0]: is negative (-1)"),
        ((*TOK_S, "nuvec", "samples", 0), "1", f'{WHERE}.nuvec.samples[0]: expected a number, found "1"'),
        ((*TOK_S, "nuvec", "samples", 0), True, f"{WHERE}.nuvec.samples[0]: expected a number, found true"),
        (
            (*TOK_S, "nuvec", "median"),
            441.2,
            f"{WHERE}.nuvec.median: is 441.2, but the samples' median is 441.145",
        ),
        ((*TOK_S, "nuvec", "unit"), "s", f"{WHERE}.nuvec.unit: unit of tok_s is 'tok/s', found 's'"),
        ((*TOK_S, "mlx_lm"), None, f"{WHERE}: missing key 'reason'"),
        ((*TOK_S, "ratio"), None, f"{WHERE}.ratio: must be null exactly where a side is null"),
        (TOK_S, 3, f"{WHERE}: expected an object, found 3"),
        (("models", 0, "memory", "idle"), {}, "models[0].memory.idle: unknown memory point"),
        (("models", 0, "concurrency", 1, "level"), 1, "models[0].concurrency[1]: point '1' of section"),
        (("sections", 0), "speed", "sections[0]: unknown section 'speed'"),
        (("created",), "2026-10-31T13:14:24", "created: '2026-10-31T13:14:24' has no UTC offset"),
        (("created",), "yesterday", "created: 'yesterday' isn't an ISO 8601 time"),
        (("settings", "gates", "gate"), 0, "settings.gates.gate: must be more than 0"),
        (("models", 0, "status"), "partial", "models[0]: missing key 'reason'"),
    ],
)
def test_a_fault_is_named_with_file_and_json_path(path: Path_, value: Any, said: str, tmp_path: Path) -> None:
    data = small()
    put(data, path, value)
    assert message(data, tmp_path).startswith(f"{tmp_path / 'record.json'}: {said}")


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    data = small()
    remove(data, (*TOK_S, "nuvec", "samples"))
    assert f"{WHERE}.nuvec: missing key 'samples'" in message(data, tmp_path)


def test_a_section_that_is_not_listed_is_not_silently_dropped(tmp_path: Path) -> None:
    data = small()
    data["sections"].remove("concurrency")
    assert "models[0].concurrency: isn't listed in the record's sections" in message(data, tmp_path)


def test_a_side_of_zero_cannot_be_judged(tmp_path: Path) -> None:
    data = small()
    put(data, (*TOK_S, "nuvec"), {"median": 0, "samples": [0], "unit": "tok/s"})
    assert f"{WHERE}: tok_s: candidate is 0" in message(data, tmp_path)


def test_a_median_off_by_float_noise_is_accepted(tmp_path: Path) -> None:
    data = small()
    put(data, (*TOK_S, "nuvec", "median"), 441.145 * (1 + 1e-12))
    assert len(read_parity_record(save(data, tmp_path)).models) == 2


def live() -> dict[str, Any]:
    """A record as live runs write them: rules, notes, equal tokens, facts of the sides, random weights."""
    data = {**converted(), "models": converted()["models"][:2]}
    data["candidate"]["facts"] = {"mlx": "0.32.4", "compiled": True}
    decode = data["models"][0]["decode"][0]
    decode.update(same_tokens=False, note="token 3 is candidate 1 and baseline 2: a near tie")
    decode["tok_s"]["rule"] = "interval"
    data["models"][0]["concurrency"][0]["note"] = "stream 0: token 1"
    data["models"][0]["synthetic"] = True
    warm = data["models"][0]["load"]["warm"]
    warm["spawn_to_first_token_s"] = {**copy.deepcopy(warm["first_token_s"]), "gated": False}
    for name in ("gate_pass", "goal_pass"):
        del warm["spawn_to_first_token_s"][name]
    return data


def test_what_live_runs_say_more_is_read_and_written_again(tmp_path: Path) -> None:
    data = live()
    validator("parity-record").validate(data)
    record = read_parity_record(save(data, tmp_path))
    model, other = record.models
    assert (model.synthetic, other.synthetic) == (True, False)
    assert record.candidate.facts == {"mlx": "0.32.4", "compiled": True}
    first = model.points[0]
    assert (first.same_tokens, first.note[:7], first.results[0].rule) == (False, "token 3", "interval")
    assert model.points[1].same_tokens is None
    assert "load-warm-spawn_to_first_token_s" in {r.id.removeprefix(f"{model.name}-") for r in model.results}
    again = json.loads(json.dumps(to_json(record)))
    validator("parity-record").validate(again)
    assert again["models"] == data["models"]
    assert again["candidate"] == data["candidate"]


def test_the_rule_decides_what_the_ratio_leaves_open(tmp_path: Path) -> None:
    def verdict(rule: str) -> str:
        data = live()
        metric = data["models"][0]["decode"][0]["tok_s"]
        sides = {"candidate": [9.7, 9.7, 9.7, 99, 99, 99, 99], "baseline": [10.0] * 7}
        for name, samples in sides.items():
            metric[name] = {"median": sorted(samples)[3], "samples": samples, "unit": "tok/s"}
        metric["rule"] = rule
        found = judge(read_parity_record(save(data, tmp_path)).results[0], 0.98)
        assert found is not None
        return str(found.outcome)

    assert (verdict("point"), verdict("interval")) == ("passed", "inconclusive")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("models", 0, "decode", 0, "tok_s", "rule"), "mean", "tok_s.rule: is no rule that ratios are judged by"),
        (("models", 0, "decode", 0, "tok_s", "candidate", "samples"), [1.0], "tok_s: tok_s: 1 samples against"),
        (("models", 0, "decode", 0, "same_tokens"), "no", "same_tokens: expected true or false"),
        (("models", 0, "decode", 0, "note"), 3, "note: expected a string"),
        (("models", 0, "synthetic"), 1, "synthetic: expected true or false"),
        (("candidate", "facts"), [], "candidate.facts: expected an object"),
    ],
)
def test_a_fault_in_what_live_runs_say_more_is_named(path: Path_, value: Any, said: str, tmp_path: Path) -> None:
    data = live()
    put(data, path, value)
    if value == [1.0]:
        put(data, (*path[:-1], "median"), 1.0)
    assert said in message(data, tmp_path)


def test_a_partial_model_may_lack_sections_and_a_whole_one_not(tmp_path: Path) -> None:
    data = live()
    del data["models"][0]["load"]
    assert "models[0]: missing key 'load'" in message(data, tmp_path)
    data["models"][0].update(status="partial", reason="not measured: load")
    model = read_parity_record(save(data, tmp_path)).models[0]
    assert "load" not in {point.section for point in model.points}


SMALL = {
    "theirs": small(),
    "ours": {**converted(), "models": [converted()["models"][i] for i in (0, 7)]},
    "live": live(),
}
PATHS = {name: [path for path, _ in walk(data) if path] for name, data in SMALL.items()}
JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, -1, 1, 2, 1.5, 1e308, 5e-324, 10**299, 10**400, float("nan"), "", "x", [], {}]
)
JUNK_TREE = JUNK | st.lists(JUNK, max_size=2) | st.dictionaries(st.text(max_size=3), JUNK, max_size=2)


@st.composite
def mutations(draw: st.DrawFn) -> Any:
    name = draw(st.sampled_from(sorted(SMALL)))
    data = copy.deepcopy(SMALL[name])
    path = draw(st.sampled_from(PATHS[name]))
    if draw(st.booleans()):
        remove(data, path)
    else:
        put(data, path, draw(JUNK_TREE))
    return data


def read_or_error(file: Path) -> ParityRecord | RecordError:
    try:
        return read_parity_record(file)
    except RecordError as error:
        return error


@settings(max_examples=400, deadline=None)
@given(data=mutations())
def test_any_damaged_record_is_refused_or_converts_to_our_schema(
    data: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = save(data, tmp_path_factory.getbasetemp())
    record = read_or_error(file)
    if isinstance(record, RecordError):
        assert str(record).startswith(str(file))
        return
    for item in record.results:
        judge(item, record.gate)
    summary_lines(record.summary())
    ours = json.dumps(to_json(record), allow_nan=False)
    validator("parity-record").validate(json.loads(ours))
