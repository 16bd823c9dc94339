"""One module a `model_type`; each has `build(config, weights)` and `TIED`, the default of `tie_word_embeddings`."""
