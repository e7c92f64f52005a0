"""A scene to images, depths and normals: a rasteriser in numba."""
