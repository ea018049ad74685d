"""Conditions on sizes: read, simplified, decided, written for people."""
