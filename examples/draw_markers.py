"""Draw the MarkerArrays of a bag as a picture, for where there is no RViz.

    python examples/draw_markers.py BAG PICTURE.png [--at SECONDS]

Left: as the camera sees them. Right: from the side. Only what the messages hold is drawn: points,
colours and sizes of line and sphere lists.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_typestore

SPHERE, LINE_LIST, SPHERE_LIST = 2, 5, 7
WIDTH, HEIGHT, SCALE = 640, 400, 3  # pixels of a panel; drawn larger and reduced


@dataclass
class Shape:
    """One thing to paint: its corners (camera frame, m), colour (0 to 1) and width (m)."""

    corners: np.ndarray
    color: np.ndarray
    width: float


def marker_arrays(bag: Path, at_s: float) -> list[object]:
    """Return the last MarkerArray of every topic up to a time after the bag's first one."""
    latest: dict[str, object] = {}
    with AnyReader([bag], default_typestore=get_typestore(Stores.ROS2_JAZZY)) as reader:
        wanted = [c for c in reader.connections if c.msgtype.endswith("/MarkerArray")]
        first = None
        for connection, time_ns, data in reader.messages(connections=wanted):
            first = time_ns if first is None else first
            if latest and time_ns - first > at_s * 1e9:
                break
            latest[connection.topic] = reader.deserialize(data, connection.msgtype)
    return list(latest.values())


def points_of(items: Sequence[object]) -> np.ndarray:
    """Return points as an array (N, 3)."""
    return np.array([[p.x, p.y, p.z] for p in items]).reshape(-1, 3)


def turned(marker: object, points: np.ndarray) -> np.ndarray:
    """Return points of a marker in its frame: its pose applied."""
    q, p = marker.pose.orientation, marker.pose.position
    v = np.array([q.x, q.y, q.z])
    cross = 2 * np.cross(v, points)
    return points + q.w * cross + np.cross(v, cross) + [p.x, p.y, p.z]


def shapes_of(marker: object) -> Iterator[Shape]:
    """Yield what a marker is made of; markers that delete or are empty give nothing."""
    if marker.action != 0:
        return
    one = np.array([marker.color.r, marker.color.g, marker.color.b])
    single = marker.type == SPHERE
    points = turned(marker, np.zeros((1, 3)) if single else points_of(marker.points))
    colors = np.array([[c.r, c.g, c.b] for c in marker.colors]).reshape(-1, 3)
    if marker.type not in (SPHERE, LINE_LIST, SPHERE_LIST):
        return
    step = 2 if marker.type == LINE_LIST else 1
    for start in range(0, len(points) - step + 1, step):
        color = colors[start : start + step].mean(0) if len(colors) == len(points) else one
        yield Shape(points[start : start + step], color, marker.scale.x)


def panel(shapes: list[Shape], angle: float) -> np.ndarray:
    """Return a picture of the shapes, without perspective, turned about the vertical (radians)."""
    size = np.array([WIDTH, HEIGHT]) * SCALE
    image = np.full((size[1], size[0], 3), 250, np.uint8)
    turn = np.array(
        [[np.cos(angle), 0, -np.sin(angle)], [0, 1, 0], [np.sin(angle), 0, np.cos(angle)]]
    )
    flat = np.concatenate([shape.corners for shape in shapes]) @ turn.T
    low, high = flat[:, :2].min(0), flat[:, :2].max(0)
    zoom = 0.9 * (size / (high - low)).min()

    def seen(points: np.ndarray) -> np.ndarray:
        return points @ turn.T

    for shape in sorted(shapes, key=lambda s: -seen(s.corners)[:, 2].mean()):
        corners = seen(shape.corners)
        pixels = np.round((corners[:, :2] - (low + high) / 2) * zoom + size / 2).astype(np.int32)
        color = tuple(float(c) for c in np.clip(255 * shape.color, 0, 255)[::-1])
        thick = max(1, round(shape.width * zoom))
        if len(pixels) == 1:
            cv2.circle(image, pixels[0].tolist(), max(1, thick // 2), color, -1, cv2.LINE_AA)
        else:
            cv2.line(image, pixels[0].tolist(), pixels[1].tolist(), color, thick, cv2.LINE_AA)
    return cv2.resize(image, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)


def main() -> None:
    """Draw one moment of a bag."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bag", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--at", type=float, default=0.0, help="seconds after the first markers")
    arguments = parser.parse_args()
    arrays = marker_arrays(arguments.bag, arguments.at)
    shapes = [s for array in arrays for marker in array.markers for s in shapes_of(marker)]
    if not shapes:
        parser.error(f"{arguments.bag}: no markers to draw")
    picture = np.hstack([panel(shapes, 0.0), panel(shapes, 0.9)])
    cv2.imwrite(str(arguments.picture), picture)


if __name__ == "__main__":
    main()
