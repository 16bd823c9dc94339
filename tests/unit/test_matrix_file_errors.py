"""Facts about wrong matrix files: each is refused with its path, its line and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmbench.errors import MatrixError
from pytest_llmbench.matrix_file import load

BACKENDS = ("mlx-lm", "ollama", "llama-server", "openai")
ONE = "tests:\n- id: a\n  backend: mlx-lm\n  model_id: m\n"
Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(content: str | bytes) -> Path:
        path = tmp_path / "m.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def with_fields(text: str) -> str:
    """The smallest matrix, with more lines (from line 5 on) in its only entry."""
    return ONE + "".join(f"  {line}\n" for line in text.split("\n"))


REFUSED = {
    "an empty file": ("", 1, "the file is empty; a matrix needs a list of `tests`"),
    "only comments": ("# nothing\n", 1, "the file is empty"),
    "a list at the top": ("- a\n", 1, "expected a mapping, found a list"),
    "no tests": ("prompts: [short]\n", 1, "the file has no `tests`"),
    "tests with nothing behind": ("\nprompts: [short]\ntests:\n", 2, "the file has no `tests`"),
    "an empty list of tests": ("prompts: [short]\ntests: []\n", 2, "the list of tests is empty"),
    "tests that are a mapping": ("tests: {a: b}\n", 1, "expected a list, found a mapping"),
    "a test that is a string": ("tests:\n- a\n", 2, "expected a mapping, found a string"),
    "two documents": (ONE + "---\n" + ONE, 5, "expected a single document in the stream"),
    "broken syntax": ("tests:\n- id: a\n  backend: [mlx-lm\n  model_id: m\n", 4, "isn't valid YAML"),
    "a tab": ("tests:\n\t- id: a\n", 2, "isn't valid YAML"),
    "an undefined alias": ("tests:\n- *nobody\n", 2, "found undefined alias 'nobody'"),
    "a control character": ("tests:\n- id: \x07\n", 2, "special characters are not allowed"),
    "an impossible escape": ('tests: "\\UFFFFFFFF"\n', 1, "isn't valid YAML"),
    "an unknown top key": ("test:\n" + ONE, 1, "unknown key 'test' in a matrix file; did you mean 'tests'?"),
    "an unknown setting": ("settings:\n  run: 3\n" + ONE, 2, "in settings; did you mean 'runs'?"),
    "an unknown hardware key": ("hardware: {ram: 3}\n" + ONE, 1, "unknown key 'ram' in hardware; known: "),
    "an unknown default": ("defaults: {modle: x}\n" + ONE, 1, "in defaults; did you mean 'model'?"),
    "an id in the defaults": ("defaults: {id: x}\n" + ONE, 1, "unknown key 'id' in defaults"),
    "a bad default that nobody uses": ("defaults: {backend: x}\n" + ONE, 1, "unknown backend 'x'"),
    "a duplicate id": (
        ONE + "- {backend: mlx-lm, model_id: m,\n   id: a}\n",
        6,
        "id 'a' is already used in line 2",
    ),
    "a test without id": ("tests:\n- {backend: mlx-lm, model_id: m}\n", 2, "this test has no `id`"),
    "a test without the rest": (ONE + "- id: b\n", 5, "this test has no `backend`, `model_id`"),
    "no runs": ("settings: {runs: 0}\n" + ONE, 1, "expected a whole number from 1 to 10000, found '0'"),
    "negative warm-ups": ("settings: {warmup: -1}\n" + ONE, 1, "from 0 to 10000, found '-1'"),
    "runs without end": ("settings: {runs: 99999999999}\n" + ONE, 1, "from 1 to 10000"),
    "a pause of a lifetime": ("settings: {cooldown: 1.0e+300}\n" + ONE, 1, "at most 86,400"),
    "a negative pause": ("settings: {cooldown: -0.5}\n" + ONE, 1, "finite number of 0 or more"),
    "nan": ("settings: {cooldown: .nan}\n" + ONE, 1, "found '.nan'"),
    "no time at all": ("settings: {server_timeout: 0}\n" + ONE, 1, "finite number above 0"),
    "a port too high": ("settings: {bench_port: 65536}\n" + ONE, 1, "from 1 to 65535, found '65536'"),
    "port 0": ("settings: {bench_port: 0}\n" + ONE, 1, "from 1 to 65535, found '0'"),
    "a setting without value": ("settings: {runs: }\n" + ONE, 1, "expected a whole number, found nothing"),
    "a boolean for a number": ("settings: {runs: true}\n" + ONE, 1, "a whole number, found a boolean"),
    "a fraction for a count": ("settings: {runs: 1.5}\n" + ONE, 1, "a whole number, found a number"),
    "memory in words": ("hardware:\n  memory_gb: 64 GB\n" + ONE, 2, "expected a number, found a string"),
    "no prompts": ("prompts: []\n" + ONE, 1, "the list is empty; name something or leave the key out"),
    "an unknown prompt": ("prompts: [shrt]\n" + ONE, 1, "unknown prompt 'shrt'; did you mean 'short'?"),
    "a prompt twice": ("prompts: [code,\n  code]\n" + ONE, 2, "'code' is in this list twice"),
    "a prompt name that is taken": ("custom_prompts: {code: x}\n" + ONE, 1, "'code' is built in"),
    "a prompt name with a blank": ("custom_prompts: {a b: x}\n" + ONE, 1, "'a b' is no valid name"),
    "an empty prompt": ('custom_prompts: {p: ""}\n' + ONE, 1, "found an empty string"),
    "a prompt with a level's name": ("custom_prompts: {concurrency-4: x}\n" + ONE, 1, "'concurrency-4' is built in"),
    "a prompt without text": ("custom_prompts:\n  p: {system: x}\n" + ONE, 2, "has no `text`"),
    "a prompt with a misspelling": ("custom_prompts: {p: {txt: x}}\n" + ONE, 1, "did you mean 'text'?"),
    "a key that is no string": ("custom_prompts: {1: x}\n" + ONE, 1, "key '1' is a whole number, not a str"),
    "a key that is a list": ("? [a]\n: b\n", 1, "expected a name as the key, found a list"),
    "a merge that is no mapping": ("<<: 3\n" + ONE, 1, "expected a mapping, found a whole number"),
    "a mapping that merges itself": ("&a\n<<: *a\n", 1, "merges (`<<`) itself"),
    "a number that can't be read": ("settings: {runs: !!int x}\n" + ONE, 1, "can't be read as a whole number"),
    "a number too large": (f"settings: {{cooldown: {'9' * 400}}}\n" + ONE, 1, "can't be read as a whole number"),
    "a value of another type": ("settings: {runs: !mine 3}\n" + ONE, 1, "found a value tagged '!mine'"),
}

REFUSED_FIELDS = {
    "an unknown field": ("no_thinking: true", "unknown key 'no_thinking' in a test; did you mean 'no_think'?"),
    "a field in capitals": ("Group: x", "did you mean 'group'?"),
    "a field twice": ("model_id: other", "key 'model_id' is already given in line 4"),
    "a quant that YAML reads as a number": ("quant: 4", "expected a string, found a whole number; put it in quotes"),
    "a name that YAML reads as a date": ("name: 2026-01-01", "expected a string, found a date; put it in quotes"),
    "a list for a string": ("group: [a]", "expected a string, found a list"),
    "no cache": ('kv_cache: ""', "expected some text, found an empty string"),
    "words for a boolean": ('enabled: "false"', "expected true or false, found a string"),
    "enabled without value": ("enabled:", "expected true or false, found nothing"),
    "a hot number": ("temperature: .inf", "expected a finite number of 0 or more, found '.inf'"),
    "no tokens": ("max_tokens: 0", "expected a whole number of 1 or more"),
    "nested arguments": ("extra_args: [[a]]", "expected a string or a number, found a list"),
    "arguments in a mapping": ("extra_args: {a: b}", "expected a list, found a mapping"),
    "an open quote": ("extra_args: -c '8192", "can't be split into arguments: No closing quotation"),
    "a NUL": ('extra_args: ["\\0"]', "holds a NUL"),
    "half a character": ('model: "\\ud83d"', "half a surrogate pair"),
    "env as a list": ("env: [A=1]", "expected a mapping, found a list"),
    "a variable without value": ("env: {A: }", "expected a string or a number, found nothing"),
    "a strange variable": ("env: {A-B: 1}", "the name of an environment variable"),
    "an address without a scheme": ("server_url: 127.0.0.1:8000", "no server's address; write for instance http://"),
    "an address with a key in it": ("server_url: http://me:secret@box/v1", "no user, password or query"),
    "an address with a query": ("server_url: http://box/v1?key=secret", "no user, password or query"),
    "an address with an impossible port": ("server_url: http://box:65536", "no server's address"),
    "a strange key variable": ("api_key_env: $KEY", "the name of an environment variable"),
    "an unknown prompt": ("prompts: [context-5k]", "unknown prompt 'context-5k'; did you mean 'context-"),
    "no prompts": ("prompts: []", "the list is empty"),
    "an unknown metric": ("gates: {decode_toks: {at_least: 1}}", "did you mean 'decode_tok_s'?"),
    "a gate without bound": ("gates: {ttft_s: {}}", "the gate on ttft_s has no bound"),
    "a gate that is a number": ("gates: {ttft_s: 3}", "expected a mapping, found a whole number"),
    "a gate with another bound": ("gates: {ttft_s: {at_mst: 3}}", "in a gate; did you mean 'at_most'?"),
    "a gate nobody can pass": ("gates: {ttft_s: {at_least: 2, at_most: 1}}", "no ttft_s is at least 2"),
    "nobody at once": ("concurrency: [0]", "expected a whole number from 1 to 1024"),
    "too many at once": ("concurrency: [4096]", "expected a whole number from 1 to 1024"),
    "a gate on half a level": ("gates: {ttft_s@x: {at_most: 1}}", "write for instance ttft_s@4"),
    "a gate on no level": ("gates: {ttft_s@0: {at_most: 1}}", "'0' is no number of requests at once"),
    "an unknown metric of a level": ("gates: {wall@4: {at_most: 1}}", "did you mean 'wall_s'?"),
    "a level twice": ("concurrency: [4, 0x4]", "'4' is in this list twice"),
    "an unknown requirement": ("requires: [memory:48]", "unknown requirement 'memory'; did you mean 'memory_gb'?"),
    "a requirement without value": ("requires: [binary]", "isn't a valid requirement; write for instance binary:"),
    "an unknown platform": ("requires: [platform:macos]", "write for instance platform:darwin"),
    "memory in words": ("requires: ['memory_gb:48GB']", "write for instance memory_gb:48"),
    "no memory": ("requires: ['memory_gb:0']", "write for instance memory_gb:48"),
}


@pytest.mark.parametrize(("text", "line", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_file_is_refused_with_path_and_line(write: Write, text: str, line: int, message: str) -> None:
    path = write(text)
    with pytest.raises(MatrixError) as caught:
        load(path, backends=BACKENDS)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert message in str(caught.value)
    assert (caught.value.path, caught.value.line) == (path, line)


@pytest.mark.parametrize(("written", "message"), REFUSED_FIELDS.values(), ids=REFUSED_FIELDS.keys())
def test_a_wrong_field_is_refused_with_its_line(write: Write, written: str, message: str) -> None:
    path = write(with_fields(written))
    with pytest.raises(MatrixError) as caught:
        load(path, backends=BACKENDS)
    assert str(caught.value).startswith(f"{path}:5: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a[1]", "ä", "a::b", "a\\n"])
def test_an_id_that_no_test_can_have_is_refused(write: Write, name: str) -> None:
    text = f'tests:\n- backend: mlx-lm\n  model_id: m\n  id: "{name}"\n'
    with pytest.raises(MatrixError, match=r"m\.yaml:4: .* is no valid name"):
        load(write(text), backends=BACKENDS)


def test_an_unknown_backend_is_refused_with_the_known_ones(write: Write) -> None:
    text = "tests:\n- id: a\n  model_id: m\n  backend: lama-server\n"
    with pytest.raises(MatrixError) as caught:
        load(write(text), backends=BACKENDS)
    assert str(caught.value).endswith(
        "m.yaml:4: unknown backend 'lama-server'; did you mean 'llama-server'? "
        "known: llama-server, mlx-lm, ollama, openai"
    )


def test_a_file_that_is_not_utf8_is_refused_at_the_line_of_the_byte(write: Write) -> None:
    with pytest.raises(MatrixError, match=r"m\.yaml:2: isn't UTF-8 text"):
        load(write(b"prompts: [short]\ntests: \xff\n"), backends=BACKENDS)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"none\.yaml:1: can't be read: No such file"):
        load(tmp_path / "none.yaml", backends=BACKENDS)
    with pytest.raises(MatrixError, match="can't be read"):
        load(tmp_path, backends=BACKENDS)


@pytest.mark.parametrize("url", ["http://me:hunter2@box/v1", "http://box/v1?key=hunter2", "box?key=hunter2"])
def test_a_complaint_about_an_address_does_not_show_the_secret_in_it(write: Write, url: str) -> None:
    with pytest.raises(MatrixError, match="api_key_env") as caught:
        load(write(with_fields(f"server_url: {url}")), backends=BACKENDS)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", ["12345678", "[sk-secret]", "{a: sk-secret}"])
def test_a_complaint_about_a_key_does_not_show_it(write: Write, value: str) -> None:
    with pytest.raises(MatrixError, match="expected a string") as caught:
        load(write(with_fields(f"api_key: {value}")), backends=BACKENDS)
    assert "1234" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_all_faults_of_a_file_are_told_at_once_each_with_its_line(write: Write) -> None:
    wrong = "tests:\n- {id: a, backend: olama, model_id: m, gates: {ttft_s: {at_lest: 1}}}\n- {id: b, model_id: 3}\n"
    with pytest.raises(MatrixError) as caught:
        load(write(wrong + ONE.removeprefix("tests:\n") * 2), backends=BACKENDS)
    said = [(fault.split(":")[1], fault.split("; ")[0].split(": ", 1)[1]) for fault in caught.value.faults]
    assert said == [
        ("2", "unknown backend 'olama'"),
        ("2", "unknown key 'at_lest' in a gate"),
        ("3", "this test has no `backend`"),
        ("7", "id 'a' is already used in line 4"),
    ]
    assert caught.value.line == 2
    assert str(caught.value).splitlines() == list(caught.value.faults)


def test_a_fault_that_several_tests_share_is_told_once(write: Write) -> None:
    shared = "- &a {id: a, backend: mlx-lm, model_id: m, wrong: &bad {k: 1, k: 2}}\n- {<<: *a, id: b}\n"
    with pytest.raises(MatrixError) as caught:
        load(write(f"tests:\n{shared}- {{<<: *bad}}\n- {{<<: *bad}}\n"), backends=BACKENDS)
    assert [fault.split(": ")[1][:20] for fault in caught.value.faults] == [
        "unknown key 'wrong' ",
        "key 'k' is already g",
    ]


def test_of_very_many_faults_the_first_are_told(write: Write) -> None:
    with pytest.raises(MatrixError) as caught:
        load(write("tests:\n" + "- {id: a}\n" * 30), backends=BACKENDS)
    assert len(caught.value.faults) == 30
    assert str(caught.value).splitlines()[20:] == ["… and 10 more"]
