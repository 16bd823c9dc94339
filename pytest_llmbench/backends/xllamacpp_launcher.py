"""Run llama.cpp's own HTTP server out of the wheel `xllamacpp`, with llama-server's flags (a part of them).

python -m pytest_llmbench.backends.xllamacpp_launcher -m MODEL.gguf --port 8080
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Any


def parser() -> argparse.ArgumentParser:
    """Flags named as llama-server names them; another flag is a usage error, never silently dropped."""
    flags = argparse.ArgumentParser(prog="xllamacpp_launcher", allow_abbrev=False, description=__doc__)
    flags.add_argument("-m", "--model", required=True)
    flags.add_argument("--host", default="127.0.0.1")
    flags.add_argument("--port", type=int, required=True)
    flags.add_argument("--alias")
    flags.add_argument("-c", "--ctx-size", type=int, default=0)
    flags.add_argument("-np", "--parallel", type=int, default=1)
    flags.add_argument("-ngl", "--n-gpu-layers", type=int, default=-1)
    flags.add_argument("-t", "--threads", type=int, default=-1)
    flags.add_argument("-b", "--batch-size", type=int, default=2048)
    flags.add_argument("-ub", "--ubatch-size", type=int, default=512)
    flags.add_argument("-ctk", "--cache-type-k", default="f16")
    flags.add_argument("-ctv", "--cache-type-v", default="f16")
    flags.add_argument("-fa", "--flash-attn", choices=("on", "off", "auto"), default="auto")
    flags.add_argument("--cache-reuse", type=int, default=0)
    flags.add_argument("--no-warmup", action="store_true")
    flags.add_argument("--metrics", action="store_true")
    flags.add_argument("--api-key")
    return flags


def parameters(given: argparse.Namespace) -> Any:
    """llama.cpp's `common_params` for the flags given. SystemExit(2) for a cache type that it doesn't know."""
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path, p.hostnames, p.port = given.model, [given.host], given.port
    p.model_alias = {given.alias} if given.alias else set()
    p.n_ctx, p.n_parallel, p.n_gpu_layers = given.ctx_size, given.parallel, given.n_gpu_layers
    p.n_batch, p.n_ubatch, p.n_cache_reuse = given.batch_size, given.ubatch_size, given.cache_reuse
    p.cpuparams.n_threads = given.threads
    p.api_keys = [given.api_key] if given.api_key else []
    p.warmup, p.endpoint_metrics, p.ui = not given.no_warmup, given.metrics, False
    modes = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}
    p.flash_attn_type = xllamacpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{modes[given.flash_attn]}"]
    types = xllamacpp.ggml_type.__members__
    for flag, value in (("cache_type_k", given.cache_type_k), ("cache_type_v", given.cache_type_v)):
        if f"GGML_TYPE_{value.upper()}" not in types:
            parser().error(f"unknown cache type {value!r}")
        setattr(p, flag, types[f"GGML_TYPE_{value.upper()}"])
    return p


def main(argv: list[str] | None = None) -> None:
    """Serve until a signal ends the process."""
    import xllamacpp

    given = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = xllamacpp.Server(parameters(given))
    sys.stderr.write(f"listening on {server.listening_address}\n")
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
