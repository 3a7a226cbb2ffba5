"""The tracker that needs no GPU and no weights of ours."""
