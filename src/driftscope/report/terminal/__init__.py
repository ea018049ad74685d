"""Records on a terminal."""
