"""What is done once a process, before sglang serves a setup."""
