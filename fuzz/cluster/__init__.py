"""One campaign over the nodes of a cluster, in chunks that may be lost and done again."""
