"""A recording format, a tracker and a robot for acehand, in a package of their own."""
