"""Who wants to hear of comparisons as they are made: a test runner adds itself here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Each is called with the comparison and whether the assertion that made it fails.
listeners: list[Callable[[Any, bool], None]] = []
