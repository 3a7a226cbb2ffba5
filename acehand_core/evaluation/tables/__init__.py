"""The paper's tables: its published rows, marked as quoted, beside evaluations that were run."""
