"""Dense geometry on a CPU: measured depth of keyframes, fused into a cloud and a mesh."""
