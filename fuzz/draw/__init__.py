"""Draw setups and cases with Hypothesis."""
