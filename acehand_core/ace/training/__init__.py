"""Training: configuration, batches, steps, checkpoints, logs. The only package with hydra."""
