"""What `ci/parity_gate` is made of."""
