"""Functions on numpy arrays in float64: their calls are dispatched to torch and recorded on a tape."""
