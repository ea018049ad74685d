"""Programs in float64: torch graphs and ONNX graphs, constants reconciled, rounding noise injected."""
