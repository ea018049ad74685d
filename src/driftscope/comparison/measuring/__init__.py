"""How two tensors differ, measured in one pass, a piece at a time."""
