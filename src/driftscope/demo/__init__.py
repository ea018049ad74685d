"""The main job on real input: a digit classifier, exported to ONNX, run elsewhere and compared."""
