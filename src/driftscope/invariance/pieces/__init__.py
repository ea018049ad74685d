"""A sequence given in pieces: how a program is called with them, and what it hands on from one to the next."""
