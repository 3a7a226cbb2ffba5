"""Feature sources of the decoder: the Wan trunk with its video VAE, and the ablations."""
