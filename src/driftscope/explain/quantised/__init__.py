"""Quantised files: whether their integers are the other side's weights, rounded, and what that costs."""
