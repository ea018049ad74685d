"""What a program does at which shapes, found by asking it."""
