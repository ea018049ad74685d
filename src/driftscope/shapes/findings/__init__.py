"""What a check of shapes has to say, and what mends it."""
