"""Training: data, losses, recipes and the trainer."""
