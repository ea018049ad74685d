"""Runs of studies on disk: rows, tables, listings, queries."""
