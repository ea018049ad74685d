"""Many questions at once: a grid, a pure cell function, rows that are kept."""
