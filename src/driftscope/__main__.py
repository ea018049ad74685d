"""``python -m driftscope`` is the command ``driftscope``."""

from __future__ import annotations

from driftscope.cli import main

if __name__ == "__main__":
    main(prog_name="driftscope")
