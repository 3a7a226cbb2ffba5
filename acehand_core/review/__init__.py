"""Review of episodes: checks, report and page, decisions."""
