"""What the kernels of a runtime did natively, step by step."""
