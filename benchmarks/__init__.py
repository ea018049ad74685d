"""Ratios against peers and limits, side by side in one run; each prints what was expected and what was measured."""
