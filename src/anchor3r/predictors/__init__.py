"""What measures windows of frames: the network, VGGT, or classical features."""

from anchor3r.predictors.interface import Predictor, WindowPrediction, WindowStatus

__all__ = ["Predictor", "WindowPrediction", "WindowStatus"]
