"""A VGGT that runs in milliseconds, for the tests of everything built on it."""

from anchor3r.model.vggt import VGGTConfig

SMALL_VGGT = VGGTConfig(
    embed_dim=32,
    num_heads=4,
    depth=4,
    encoder_depth=1,
    head_layers=(0, 1, 2, 3),
    dpt_features=8,
    dpt_out_channels=(8, 8, 8, 8),
    camera_trunk_heads=4,
    camera_trunk_depth=1,
    camera_iterations=2,
)
