"""Programs for developers: what makes bundled assets, and what measures the code."""
