"""The graph of relative poses: what was measured, and the global poses that follow from it."""
