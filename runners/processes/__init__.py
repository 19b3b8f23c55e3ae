"""Worker processes, and how traces come back from them."""
