"""Attention backends whose kernels or metadata have to be stood in for, or read in a way of their own."""
