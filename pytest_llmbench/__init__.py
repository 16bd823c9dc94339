"""LLM inference benchmarks on Apple Silicon as pytest tests."""

__version__ = "0.1.0"
