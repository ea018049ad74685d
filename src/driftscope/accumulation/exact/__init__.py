"""Reductions that do not depend on an order: exact ones and ones of fixed order."""
