"""Tensors that a program stores folded: of which of the other's numbers they were not made, and what is said of it."""
