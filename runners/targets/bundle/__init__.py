"""Releases as archives, for hosts without a package index."""
