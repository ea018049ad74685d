"""What differs between two pieces that take the same values and give others."""
