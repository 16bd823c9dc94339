"""What `ci/parity_gate` and `ci/compare_base` are made of."""
