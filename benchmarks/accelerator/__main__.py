"""``python -m benchmarks.accelerator``."""

from __future__ import annotations

import sys

from benchmarks.accelerator.running import command

if __name__ == "__main__":
    raise SystemExit(command(sys.argv[1:]))
