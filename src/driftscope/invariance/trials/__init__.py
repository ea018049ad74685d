"""What is varied along each axis: one file per axis that needs more than a few lines."""
