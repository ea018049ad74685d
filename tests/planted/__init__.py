"""Bugs that must be found, and honest changes that must not be called bugs."""
