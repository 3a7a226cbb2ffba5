"""Reading what users give: paths, pickles and archives, without running any of it."""
