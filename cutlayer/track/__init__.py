"""Experiment trackers: TensorBoard, MLflow, W&B, Trackio. They read the journal; training does not know them."""
