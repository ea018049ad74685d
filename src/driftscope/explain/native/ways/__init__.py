"""Ways to compute that a runtime may take, for replays to try."""
