"""The reference pages in `docs/reference`, made from the code: `python -m reference`, with `ci` on the path."""
