"""ONNX operators by family; importing this package fills the table in :mod:`.registry`."""
