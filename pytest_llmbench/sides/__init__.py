"""Sides of a live parity run: the engines that are compared, each in a process of its own (docs/sides.md)."""
