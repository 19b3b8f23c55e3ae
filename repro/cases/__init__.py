"""Cases, their files, their validity."""
