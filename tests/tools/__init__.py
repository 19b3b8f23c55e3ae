"""What is run by hand to measure the harness: no tests."""
