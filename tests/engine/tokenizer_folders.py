"""Checkpoint folders with small tokenizers in the forms that real models have, trained here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog, doesn't it?  It's 1234567 and   three spaces.\n\n\tTabs too.\r\n",
    "def f(x):\n    return {'a': [x ** 2, 0.5]}  # naïve café, cafe\u0301, Å ﬁ",
    "日本語のテキスト 中文字符 한국어 텍스트 Привет мир مرحبا بالعالم שלום עולם नमस्ते दुनिया 👩\u200d👩\u200d👧 🇫🇷 🙂",
] * 4
HARD_TEXTS = [
    "",
    " ",
    "   leading and trailing   ",
    "a" + " " * 300 + "b" + "\n" * 40 + "\t \t",
    "👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 👍🏽 🇫🇷🇩🇪",
    "e\u0301 é \u0301 a\u0300\u0323\u0328 \u1112\u1161\u11ab 각 ﬁ Å Å ½ ①",
    "שלום \u202eabc\u202c مرحبا بالعالم",
    "日本語と中文と한국어。",
    "\0 \x01 \x7f \x85 \u2028 \u2029 \ufeff \ufffd \ufffe \U0010ffff",
    "don't DON'T we'll I'M 12345678 3.14 x_y __init__ a--b http://x.y/?q=%20",
    "▁ Ġ Ċ <0x41><0xE6> <|eot|><|bos|>  <think>\n</think> <|bos|",
    "<日 本> <s>a</s> <tool> [X] [X]b <tool> <late>c  <late>  d <image> <unk> <pad>",
    "नमस्ते \u200c\u200d क्\u200dष ไทย",
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>\n"
    "{% if m.reasoning_content is defined %}<think>{{ m.reasoning_content }}|{{ m.thinking }}</think>{% endif %}\n"
    "{{ (m.content or 'none') | trim }}{{ m.name | default('-') }}{{ eos_token }}\n"
    "{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}\n"
    "  {% if tools %}{{ tools | tojson(indent=1) }}{% endif %}\n"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    "{% generation %}{% set scoped = 1 %}{% endgeneration %}{{ scoped is defined }}{{ style }}{% endif %}\n"
)
_GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPLIT = _GPT4_SPLIT.replace("{1,3}", "")
_QWEN35_SPLIT = _QWEN_SPLIT.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")


def added(content: str, **flags: bool) -> dict[str, Any]:
    """An entry of `added_tokens_decoder`."""
    return {
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    } | flags


def llama3(folder: Path, **changes: object) -> None:
    """Byte-level BPE, a begin token by the post-processor, the whole list of added tokens in the configuration."""
    names = ["<|bos|>", "<|eot|>", "<pad>", "<think>", "</think>"]
    tokenizer = _byte_level(_GPT4_SPLIT, names)
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing("<|bos|> $A", None, [("<|bos|>", 0)])]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8, pad_id=2, pad_token="<pad>")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(i): added(name) for i, name in enumerate(names)},
        "bos_token": "<|bos|>",
        "eos_token": "<|eot|>",
        "clean_up_tokenization_spaces": True,
        "chat_template": TEMPLATE,
    }
    _write(folder, tokenizer, config | changes, "llama")


def qwen3(folder: Path) -> None:
    """NFC, markup that is added but not special; the configuration changes a flag and lists a token more."""
    _qwen(folder, _QWEN_SPLIT, "qwen3")


def qwen3_5(folder: Path) -> None:
    """As `qwen3`, with the rule for marks that its successor has."""
    _qwen(folder, _QWEN35_SPLIT, "qwen3_5")


def gemma(folder: Path) -> None:
    """Spaces as ▁, bytes as a fallback; the configuration lists no added tokens, as transformers 5 writes it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<think>", "</think>"]
    _train(tokenizer, [*names, *_bytes()], [])
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", None, [("<bos>", 2)])
    config: dict[str, object] = {f"{role}_token": f"<{role}>" for role in ("pad", "eos", "bos", "unk", "mask")}
    extra = {
        "extra_special_tokens": {"image_token": "<image>"},
        "boi_token": "<boi>",
        "tokenizer_class": "GemmaTokenizer",
    }
    _write(folder, tokenizer, config | extra, "gemma3_text")
    (folder / "chat_template.jinja").write_text("{{ image_token }}" + TEMPLATE, encoding="utf-8")


def llama2(folder: Path) -> None:
    """Metaspace with a space before the first word, which decoding strips again."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    _train(tokenizer, ["<unk>", "<s>", "</s>", *_bytes()], [])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    names = {f"{role}_token": text for role, text in (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>"))}
    _write(folder, tokenizer, {**names, "tokenizer_class": "LlamaTokenizer", "chat_template": TEMPLATE}, "llama")


def normalised(folder: Path) -> None:
    """A normaliser that loses case, tokens that are matched after it, special tokens in a file of their own."""
    tokenizer = _byte_level(_GPT4_SPLIT, ["<s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.add_tokens([AddedToken("[x]", normalized=True, rstrip=True), AddedToken("<tool>", single_word=True)])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<pad>", "chat_template": TEMPLATE}
    _write(folder, tokenizer, config, "llama")
    special = {
        "bos_token": added("<s>"),
        "eos_token": "</s>",
        "pad_token": "<tool>",
        "additional_special_tokens": ["<late>"],
    }
    (folder / "special_tokens_map.json").write_text(json.dumps(special))


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "bos-switched-off": {"add_bos_token": False},
    "eos-switched-on": {"add_eos_token": True},
    "special-tokens-as-text": {"split_special_tokens": True},
    "eos-outside-the-vocabulary": {"eos_token": "<end>"},
    "tokens-as-objects": {
        "bos_token": {"__type": "AddedToken", **added("<|bos|>", special=False)},
        "eos_token": {"__type": "AddedToken", **added("<|eot|>", lstrip=True)},
    },
    "named-templates": {
        "chat_template": [
            {"name": "tool_use", "template": "tools " + TEMPLATE},
            {"name": "default", "template": "default " + TEMPLATE},
        ]
    },
}
KINDS: Mapping[str, Callable[[Path], None]] = {
    kind.__name__: kind for kind in (llama3, qwen3, qwen3_5, gemma, llama2, normalised)
}


def make(kind: str, folder: Path) -> Path:
    """Writes the folder of a kind, or of a variant of `llama3`."""
    folder.mkdir()
    if kind in KINDS:
        KINDS[kind](folder)
    else:
        llama3(folder, **VARIANTS[kind])
    return folder


def _qwen(folder: Path, split: str, model_type: str) -> None:
    names = ["<|bos|>", "<|eot|>"]
    markup = [
        AddedToken(text, special=False, normalized=False) for text in ("<think>", "</think>", "<tool>", "<日 本>")
    ]
    tokenizer = _byte_level(split, names, markup)
    tokenizer.normalizer = normalizers.NFC()
    ids = {name: tokenizer.token_to_id(name) for name in (token.content for token in markup)}
    size = tokenizer.get_vocab_size()
    listed = {str(i): added(name) for i, name in enumerate(names)}
    listed |= {str(i): added(name, special=False, lstrip=name == "<tool>") for name, i in ids.items()}
    # Out of order: a new token's id is decided by the number here.
    listed = {str(size + 1): added("<later>"), str(size): added("<late>", rstrip=True)} | listed
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": listed,
        "additional_special_tokens": names,
        "bos_token": None,
        "unk_token": None,
        "eos_token": "<|eot|>",
        "pad_token": "<|bos|>",
        "chat_template": TEMPLATE,
    }
    _write(folder, tokenizer, config, model_type)


def _byte_level(split: str, special: list[str], added_tokens: list[AddedToken] | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _train(tokenizer, special, sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_tokens(added_tokens or [])
    return tokenizer


def _train(tokenizer: Tokenizer, special: list[str], alphabet: list[str]) -> None:
    plain = {token for token in special if token.startswith("<0x")}
    trainer = trainers.BpeTrainer(
        vocab_size=len(special) + len(alphabet) + 200,
        special_tokens=special,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet) or 60,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if plain:
        # The trainer can only put the byte tokens first as special ones, which they aren't.
        document = json.loads(tokenizer.to_str())
        document["added_tokens"] = [entry for entry in document["added_tokens"] if entry["content"] not in plain]
        tokenizer.__setstate__(json.dumps(document).encode())


def _bytes() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]


def _write(folder: Path, tokenizer: Tokenizer, config: Mapping[str, object], model_type: str) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
