"""The order of sums: found from the outside, and made irrelevant by exact and fixed-order reductions."""
