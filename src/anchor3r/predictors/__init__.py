"""What measures windows of frames: the network, VGGT, or classical features."""

from anchor3r.predictors.interface import Predictor, Status, WindowPrediction

__all__ = ["Predictor", "Status", "WindowPrediction"]
