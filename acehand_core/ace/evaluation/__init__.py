"""The paper's evaluation protocol: prediction files in, one JSON object of metrics out."""
