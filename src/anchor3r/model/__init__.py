"""The network: the current-centric pose-query transformer, VGGT, and their checkpoints."""
