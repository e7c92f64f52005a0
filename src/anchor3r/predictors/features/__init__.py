"""Classical geometry as a predictor: followed points, a small local map, windowed bundle adjustment."""
