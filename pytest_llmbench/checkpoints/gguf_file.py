"""The same model as one GGUF file for llama.cpp, with the `gguf` package alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.checkpoints import script
from pytest_llmbench.checkpoints.tokenizer import CHAT_TOKENS, Vocabulary, chat_template

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FILE_TYPES: Mapping[str, str] = {"f32": "ALL_F32", "q8_0": "MOSTLY_Q8_0", "q4_0": "MOSTLY_Q4_0"}


def write_gguf(
    path: Path,
    config: dict[str, Any],
    weights: dict[str, NDArray[Any]],
    vocabulary: Vocabulary,
    *,
    quant: str,
) -> None:
    """Writes float32 `weights` to `path`; `quant` is f32, q8_0 or q4_0 (matrices only). Raises OSError."""
    import gguf

    writer = gguf.GGUFWriter(path, "qwen3")
    try:
        _add_model(writer, path.stem, config, quant)
        _add_tokenizer(writer, config, vocabulary)
        _add_tensors(writer, config, weights, quant)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _add_model(writer: Any, name: str, config: dict[str, Any], quant: str) -> None:
    import gguf

    writer.add_type("model")
    writer.add_name(name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[quant]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_tokenizer(writer: Any, config: dict[str, Any], vocabulary: Vocabulary) -> None:
    """Byte-level BPE is ggml's model `gpt2`, GPT-2's regular expression its pre-tokenizer `gpt-2`."""
    import gguf

    kinds = [gguf.TokenType.NORMAL] * len(vocabulary.tokens)
    for number, token in enumerate(CHAT_TOKENS):
        control = token in script.CONTROL_TOKENS
        kinds[number] = gguf.TokenType.CONTROL if control else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_token_merges([f"{left} {right}" for left, right in vocabulary.merges])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(chat_template())


def _add_tensors(writer: Any, config: dict[str, Any], weights: dict[str, NDArray[Any]], quant: str) -> None:
    import gguf

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    kind = gguf.GGMLQuantizationType[quant.upper()]
    for name, value in sorted(weights.items()):
        target = names.get_name(name, try_suffixes=(".weight",))
        if value.ndim == 1 or quant == "f32":
            writer.add_tensor(target, value)
        else:
            writer.add_tensor(target, gguf.quants.quantize(value, kind), raw_dtype=kind)
