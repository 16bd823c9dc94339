"""mlx-lm's server with a TurboQuant cache: whether it has one must be seen, for without it it runs just as well."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from server_kit import Fake, Flavour, entry, flavours, open_target, prompt_for

from pytest_llmbench.backends.mlx_lm_turboquant import MlxLmTurboQuant, told_bits
from pytest_llmbench.errors import ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry
from pytest_llmbench.prompts import Message

MakeFake = Callable[..., Fake]
BY_NAME = {flavour.name: flavour for flavour in flavours()}
REAL = [BY_NAME["mlx-lm-turboquant"], BY_NAME["mlx-turboquant"]]
# As mlx-turboquant 0.0.2 and turboquant-mlx-full 0.30.0 print them.
LINE_4 = "[turboquant] serving with TurboQuant KV cache (bits=4, group_size=64, qjl=False)\n"
LINE_8_3 = (
    "[turboquant-serve] Prompt-cache byte cap: working set 15.5 GiB estimated from RAM (no Metal device)\n"
    "[turboquant-serve] TurboQuant KV cache: K=8-bit, V=3-bit, group=64, sink=0 (forces single-stream serving)\n"
)
LEFT = "[WARNING] TurboQuant KV: 2 `_AttnCache` layer(s) left at full precision -- a KVCache subclass\n"


def wanted(given: MatrixEntry, *extra_args: str) -> MatrixEntry:
    return replace(given, extra_args=extra_args)


@pytest.mark.parametrize(
    ("line", "bits"),
    [
        ("bits=4, group_size=64, qjl=False)", ("4",)),
        ("K=V=3-bit, group=64, sink=0 (forces single-stream serving)", ("3",)),
        ("K=8-bit, V=3-bit, group=64, sink=1024", ("8", "3")),
        ("on", ()),
    ],
)
def test_the_widths_are_read_from_either_servers_line(line: str, bits: tuple[str, ...]) -> None:
    assert told_bits(line) == bits


@pytest.mark.parametrize(
    ("output", "extra_args"),
    [(LINE_4, ("--tq-bits", "4")), (LINE_4, ("--kv-bits=4",)), (LINE_8_3, ("--kv-k-bits", "8", "--kv-v-bits", "3"))],
)
def test_a_server_that_names_the_widths_asked_for_is_taken(
    fake: MakeFake, tmp_path: Path, output: str, extra_args: tuple[str, ...]
) -> None:
    server = fake(backend="mlx-lm-turboquant", output=output)
    with open_target(wanted(server.entry, *extra_args), tmp_path):
        (start,) = server.events("start")
    passed = [word.replace("--tq-bits", "--kv-bits") for word in extra_args]
    assert start["argv"][-len(passed) :] == passed


@pytest.mark.parametrize(
    ("output", "extra_args", "words"),
    [
        ("mlx_lm.server\n", ("--tq-bits", "4"), "no line of the server says that its cache is TurboQuant's, of 4 bits"),
        (LINE_4, ("--tq-bits", "3"), "asked for a cache of 3 bits, but the server says: [turboquant] serving with"),
        (LINE_8_3, ("--kv-k-bits", "3", "--kv-v-bits", "8"), "asked for a cache of 3 and 8 bits, but the server says"),
        (LINE_4 + LEFT, ("--tq-bits", "4"), "only in part TurboQuant's: [WARNING] TurboQuant KV: 2 `_AttnCache`"),
    ],
)
def test_a_server_that_runs_on_with_another_cache_is_an_error(
    fake: MakeFake, tmp_path: Path, output: str, extra_args: tuple[str, ...], words: str
) -> None:
    server = fake(backend="mlx-lm-turboquant", output=output)
    with (
        pytest.raises(ServerStartError) as caught,
        open_target(wanted(server.entry, *extra_args), tmp_path),
    ):
        pass
    assert words in str(caught.value)
    assert "command: " in str(caught.value)


@pytest.mark.parametrize(
    ("extra_args", "words", "fix"),
    [
        ((), "name no width", "--tq-bits"),
        (("--tq-bits", "3.5"), "takes 3.5 bits", "--kv-quant-scheme"),
        (("--tq-bits",), "name no width", "--tq-bits"),
    ],
)
def test_an_entry_without_a_width_that_there_is_can_not_run(
    fake: MakeFake, extra_args: tuple[str, ...], words: str, fix: str
) -> None:
    with pytest.raises(Unavailable) as caught:
        MlxLmTurboQuant().check(wanted(fake(backend="mlx-lm-turboquant").entry, *extra_args))
    assert words in caught.value.reason
    assert fix in caught.value.fix


def test_the_server_with_one_width_for_all_layers_is_not_given_what_it_can_not_do(
    fake: MakeFake, tiny_kinds: Path
) -> None:
    given = fake(backend="mlx-lm-turboquant").entry
    program = Path(given.server_binary or "").with_name("turboquant")
    shutil.copy(given.server_binary or "", program)
    simple = replace(given, server_binary=str(program), extra_args=("--tq-bits", "4"))
    MlxLmTurboQuant().check(simple)
    assert MlxLmTurboQuant().binary(simple) == (str(program), "serve")
    two_widths = wanted(simple, "--kv-k-bits", "8", "--kv-v-bits", "3")
    hybrid = replace(simple, model_id=str(tiny_kinds / "tiny-hybrid"))
    for refused, words in ((two_widths, "one width for keys and values"), (hybrid, "with linear_attention")):
        with pytest.raises(Unavailable, match=words) as caught:
            MlxLmTurboQuant().check(refused)
        assert "turboquant-serve" in caught.value.fix


@pytest.mark.parametrize("flavour", REAL, ids=lambda flavour: flavour.name)
def test_two_bits_change_what_a_model_says(flavour: Flavour, tiny_checkpoints: Path, tmp_path: Path) -> None:
    if flavour.missing:
        pytest.skip(flavour.missing)
    said = {}
    for bits in ("2", "8"):
        with open_target(
            wanted(entry(flavour, tiny_checkpoints / "tiny-random"), "--tq-bits", bits), tmp_path
        ) as target:
            prompt = replace(prompt_for(target), messages=(Message(role="user", content="Tell me of the sea."),))
            said[bits] = target.stream(prompt, max_tokens=32, temperature=0.0).text
            assert target.info.version is not None
            assert "(mlx-lm 0." in target.info.version
    assert said["2"] != said["8"]
