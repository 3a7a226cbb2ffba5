"""What training minimises (paper section 3.4 and appendix "Loss Weights"). torch."""
