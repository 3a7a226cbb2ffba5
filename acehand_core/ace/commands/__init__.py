"""The commands of the paper's system: weights, labelled clips, synthetic clips, evaluation."""
