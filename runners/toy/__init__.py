"""A runner in numpy with bugs on request, for tests of the harness itself."""
