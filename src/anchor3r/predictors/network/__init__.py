"""The network as a predictor, and the window step of the correlation preset."""
