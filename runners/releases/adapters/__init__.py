"""How each runner is built, captured, replayed and run without a graph, and what differs between releases."""
