"""Readers of published datasets in their own layouts, and their conversion to stores of clips."""
