"""Names, order and parents of hand joints."""

from __future__ import annotations

FINGERS = ("thumb", "index", "middle", "ring", "pinky")

#: The 21 keypoints, OpenPose order: wrist, then each finger from base to tip.
KEYPOINT_NAMES = (
    "wrist",
    "thumb_cmc", "thumb_mcp", "thumb_ip", "thumb_tip",
    "index_mcp", "index_pip", "index_dip", "index_tip",
    "middle_mcp", "middle_pip", "middle_dip", "middle_tip",
    "ring_mcp", "ring_pip", "ring_dip", "ring_tip",
    "pinky_mcp", "pinky_pip", "pinky_dip", "pinky_tip",
)  # fmt: skip
KEYPOINT_PARENTS = (-1, 0, 1, 2, 3, 0, 5, 6, 7, 0, 9, 10, 11, 0, 13, 14, 15, 0, 17, 18, 19)

WRIST = 0
TIPS = (4, 8, 12, 16, 20)
#: The joint before each tip: thumb IP and finger DIP.
DISTALS = (3, 7, 11, 15, 19)
#: Thumb MCP and finger PIP.
INTERMEDIATES = (2, 6, 10, 14, 18)
#: Thumb CMC and finger MCP.
KNUCKLES = (1, 5, 9, 13, 17)
#: The keypoints that move rigidly with the palm.
PALM = (0, 5, 9, 13, 17)

#: The 15 finger joints in MANO's order (index, middle, pinky, ring, thumb), without the wrist.
FINGER_JOINT_NAMES = (
    "index_mcp", "index_pip", "index_dip",
    "middle_mcp", "middle_pip", "middle_dip",
    "pinky_mcp", "pinky_pip", "pinky_dip",
    "ring_mcp", "ring_pip", "ring_dip",
    "thumb_cmc", "thumb_mcp", "thumb_ip",
)  # fmt: skip
#: Parents in the tree of 16 joints (wrist first, then the 15 finger joints).
TREE_PARENTS = (-1, 0, 1, 2, 0, 4, 5, 0, 7, 8, 0, 10, 11, 0, 13, 14)
#: Tree joint (0..15) of each keypoint, or -1 for a tip.
KEYPOINT_TO_TREE = (0, 13, 14, 15, -1, 1, 2, 3, -1, 4, 5, 6, -1, 10, 11, 12, -1, 7, 8, 9, -1)
#: Keypoint (0..20) of each tree joint.
TREE_TO_KEYPOINT = (0, 5, 6, 7, 9, 10, 11, 17, 18, 19, 13, 14, 15, 1, 2, 3)

#: Edges (parent, child) of the keypoint skeleton, for drawing and for bone lengths.
BONES = tuple((p, c) for c, p in enumerate(KEYPOINT_PARENTS) if p >= 0)


def finger_keypoints(finger: str) -> tuple[int, int, int, int]:
    """Return the four keypoints of a finger from base to tip."""
    start = 1 + 4 * FINGERS.index(finger)
    return start, start + 1, start + 2, start + 3
