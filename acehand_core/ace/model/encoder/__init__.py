"""From frames to features: the frozen video VAE and the truncated diffusion transformer."""
