"""Stand-ins for native code that cannot load without a GPU."""
