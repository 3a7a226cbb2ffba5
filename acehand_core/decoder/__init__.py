"""From features to the readout of both hands, frame by frame."""
