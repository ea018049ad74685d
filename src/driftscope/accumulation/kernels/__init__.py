"""Kernels under question: rows of terms in, one number per row out."""
