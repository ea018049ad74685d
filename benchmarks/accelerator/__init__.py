"""Everything that needs an accelerator, in one run of less than eight minutes: ``make gpu``.

Each check of :mod:`benchmarks.accelerator.checks` runs in a process of its own, so that a kernel that takes its process
down, or hangs, costs that check alone. What came of it is written to ``docs/measurements/gpu-NAME.json`` and, as a
page, to ``docs/measurements/gpu-NAME.md``. Nothing is downloaded.

Run: ``python -m benchmarks.accelerator``; with ``--device cpu`` it rehearses on the processor what a device is
not needed for, and writes nothing.
"""
