"""Training: configuration, batches, steps, checkpoints, logs. The only room with hydra."""
