"""Exporting with dynamic shapes: specs, candidates, and what an export was traced under."""
