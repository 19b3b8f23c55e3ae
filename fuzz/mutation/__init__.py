"""What the harness kills: small changes of sglang's code, one at a time, and which oracle notices each."""
