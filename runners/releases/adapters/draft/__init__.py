"""EAGLEDraftCudaGraphRunner: several draft steps in one graph."""
