"""ONNX graphs in float64: planned once, evaluated node by node."""
