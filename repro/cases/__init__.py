"""What is run: cases, their files, their validity."""
