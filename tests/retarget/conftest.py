"""Hands that many tests of retargeting take."""

import pytest

from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot

VARIANTS = [(side, variant) for side in ("left", "right") for variant in ("default", "other")]


@pytest.fixture(scope="module", params=VARIANTS, ids="-".join)
def hand(request):
    """An Inspire hand of either side and variant."""
    side, variant = request.param
    return load_robot("inspire", variant).hand(side)


@pytest.fixture(scope="module")
def tree(hand):
    return KinematicTree.of(hand)


@pytest.fixture(scope="module")
def right():
    return load_robot("inspire").hand("right")


@pytest.fixture(scope="module")
def right_tree(right):
    return KinematicTree.of(right)
