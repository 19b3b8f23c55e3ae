"""Each runner built, captured, replayed and run without a graph, and the differences between releases."""
