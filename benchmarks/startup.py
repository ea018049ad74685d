"""How long the command line takes to answer, and that importing driftscope brings in no tensor library.

Run with ``python -m benchmarks.startup``.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

ROUNDS = 7
PROMISED_SECONDS = 0.35


def processor_seconds(arguments: list[str]) -> float:
    """User and system time of one child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(arguments, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print expected and measured; return the number of broken promises."""
    command = [sys.executable, "-m", "driftscope", "--help"]
    bare = [sys.executable, "-c", "pass"]
    ours = statistics.median(processor_seconds(command) for _ in range(ROUNDS))
    python = statistics.median(processor_seconds(bare) for _ in range(ROUNDS))
    print(f"driftscope --help: {ours:.2f} s (expected < {PROMISED_SECONDS} s; python alone {python:.2f} s)")
    code = "import sys, driftscope; print([m for m in ('torch', 'onnx', 'onnxruntime', 'numpy') if m in sys.modules])"
    heavy = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    print(f"import driftscope brings in: {heavy} (expected [])")
    return (ours >= PROMISED_SECONDS) + (heavy != "[]")


if __name__ == "__main__":
    raise SystemExit(main())
