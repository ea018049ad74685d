"""The study of reductions whose terms are reordered."""
