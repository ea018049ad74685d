"""Summation trees: the order of a sum as data, in words, and added again."""
