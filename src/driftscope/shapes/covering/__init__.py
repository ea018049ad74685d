"""Programs that together are right wherever the original is."""
