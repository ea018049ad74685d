"""Programs evaluated finer than float64, with proven bounds, where float64 itself cannot decide."""
