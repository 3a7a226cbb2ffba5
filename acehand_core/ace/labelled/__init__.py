"""Labelled clips: readers of published datasets, the shared store, segments."""
