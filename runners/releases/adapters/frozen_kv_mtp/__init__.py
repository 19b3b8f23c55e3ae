"""FrozenKVMTPCudaGraphRunner: draft steps of a Gemma-4 assistant, which reads the target's KV cache and writes none."""
