"""Records as one self-contained page."""
