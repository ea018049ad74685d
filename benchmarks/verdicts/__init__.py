"""Sweeps that try to break the judge: honest pairs by the thousand and planted defects, each case one row on disk."""
