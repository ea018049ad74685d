"""Run every benchmark, or those named: ``python -m benchmarks [name ...]``."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

SWEEPS = ("large_weights", "one_operator", "rewritings", "zoo")


def main() -> int:
    """Run benchmarks one after another; the exit status is the number of broken promises.

    The sweeps take hours and run only when they are named.
    """
    known = sorted(
        m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if not m.name.startswith("_") and not m.ispkg
    )
    wanted = sys.argv[1:] or [name for name in known if name not in SWEEPS]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    broken = 0
    for name in wanted:
        print(f"== {name}", flush=True)
        broken += importlib.import_module(f"benchmarks.{name}").main()
        print()
    return broken


if __name__ == "__main__":
    raise SystemExit(main())
