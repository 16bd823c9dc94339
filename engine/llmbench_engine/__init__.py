"""An in-process LLM inference engine on MLX (nothing in it yet: see the changelog)."""
