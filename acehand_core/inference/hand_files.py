"""Whether the user has MANO, and hand models in torch. Looking loads nothing heavy."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from acehand_core.data.native.mano_files import find_mano, load_mano
from acehand_core.errors import MissingDependencyError

if TYPE_CHECKING:
    from acehand_core.hand.hands_torch import TorchHands


def has_mano() -> bool:
    """Return whether MANO is configured. Raises InputError where it is but is not there."""
    try:
        find_mano()
    except MissingDependencyError:
        return False
    return True


@functools.lru_cache(maxsize=1)
def mano_hands() -> TorchHands:
    """Return the user's MANO, left shape directions as the file has them, as released."""
    from acehand_core.hand.hands_torch import TorchHands

    return TorchHands.mano(load_mano())


@functools.lru_cache(maxsize=1)
def default_hands() -> TorchHands:
    """Return the default hand, whose rotations some weights learn."""
    from acehand_core.hand.hands_torch import TorchHands

    return TorchHands.acehand()
