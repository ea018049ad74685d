"""Functions on JAX arrays in float64: JAX traces them, and each of its primitives is a torch operation on a tape."""
