"""Inputs: recordings and their cameras, files of hands, native datasets."""
