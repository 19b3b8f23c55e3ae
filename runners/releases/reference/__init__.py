"""The same models in float64 and plain PyTorch, with what rounding can make of every value: the third opinion."""
