"""What the tests on llama.cpp's diffusion program share: where it is, and a model for it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

REAL = os.environ.get("LLAMA_DIFFUSION_CLI") or shutil.which("llama-diffusion-cli")
MISSING = "" if REAL else "no llama-diffusion-cli: set LLAMA_DIFFUSION_CLI to its path, or build llama.cpp's examples"


def make_llada(path: Path, checkpoints: Path) -> Path:
    """tiny-random's weights as a masked diffusion model: attention that looks both ways, and a mask token."""
    import gguf

    reader = gguf.GGUFReader(checkpoints / "tiny-random.gguf")
    writer = gguf.GGUFWriter(path, "llada")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind, inner = field.types[0], field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name.replace("qwen3.", "llada."), field.contents(), kind, inner)
    writer.add_rope_dimension_count(reader.fields["qwen3.attention.key_length"].contents())
    writer.add_causal_attention(False)
    writer.add_diffusion_shift_logits(False)
    writer.add_mask_token_id(len(reader.fields["tokenizer.ggml.tokens"].contents()) - 1)
    for tensor in reader.tensors:
        if "attn_q_norm" not in tensor.name and "attn_k_norm" not in tensor.name:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
