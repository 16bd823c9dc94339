"""The command `llmbench`: what needs no pytest session."""
