"""EAGLEDraftCudaGraphRunner on EAGLE's first worker, which sglang had beside the second up to 0.5.12."""
