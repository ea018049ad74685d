"""Edits of the user's code, tried before they are offered."""
