"""Confirm a failure, make its case small, locate where it begins."""
