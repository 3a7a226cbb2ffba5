"""``python -m acehand_core.training.hand_prior``."""

from acehand_core.training.hand_prior.main import main

main()
