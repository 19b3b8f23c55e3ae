"""Generation: Hypothesis strategies for cases, their transition coverage, and the campaign loop."""
