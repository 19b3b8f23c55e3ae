"""MultiLayerEagleDraftExtendCudaGraphRunner, one for every layer of a multi-layer draft, in their composite."""
