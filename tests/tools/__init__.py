"""Tools that are run by hand to measure the harness: no tests."""
