"""EAGLEDraftExtendCudaGraphRunner: the draft model over the tokens that a verify has just judged."""
