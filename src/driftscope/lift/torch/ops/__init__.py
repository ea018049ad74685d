"""How ATen operators are evaluated in float64, by family."""
