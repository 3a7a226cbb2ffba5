"""Is an episode good enough: checks that know hands, the acceptance report, decisions."""
