"""What can be read of a program without running it."""
