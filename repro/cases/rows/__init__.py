"""The rows of options, a module for each part of a setup."""
