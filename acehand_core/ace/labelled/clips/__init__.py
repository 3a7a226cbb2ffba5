"""The shared format of recordings with ground truth: for training and for evaluation."""
