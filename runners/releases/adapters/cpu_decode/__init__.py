"""CPUGraphRunner: the target's decode on a CPU, where torch.compile takes the place of a graph."""
