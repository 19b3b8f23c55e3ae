"""Real bugs of sglang's history, put before the harness again: which does it find?"""
