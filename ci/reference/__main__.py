"""Writes the pages anew. Usage: PYTHONPATH=ci python -m reference"""

from __future__ import annotations

from reference.pages import FOLDER, write

if __name__ == "__main__":
    write(FOLDER)
