"""One campaign over several processes."""
