"""A server's or a model's options that take more than an argument: what a session does to have them."""
