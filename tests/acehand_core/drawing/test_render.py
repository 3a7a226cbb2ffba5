"""Robot pictures: right pixels, exact transparency, and a plain message where OpenGL is missing."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

from acehand_core.drawing.robot_renderer import RobotRenderer
from acehand_core.drawing.robot_sheet import robot_sheet
from acehand_core.errors import MissingDependencyError
from acehand_core.geometry.cameras import Camera
from helpers import ROOT
from helpers.retarget_samples import motion_of, moving_hands
from retarget.retargeting import retarget_motion
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot

pytest.importorskip("mujoco")

# Uneven on purpose: fx is not fy and the principal point is off centre.
CAMERA = Camera("pinhole", 320, 240, 300.0, 280.0, 171.3, 108.6)
# Fingers up in the image, palm to the viewer.
FACING = np.array([[0.0, 1, 0, 0], [0, 0, -1, 0.09], [-1, 0, 0, 0.5], [0, 0, 0, 1]])


@pytest.fixture(scope="module")
def robot():
    return load_robot("inspire")


@pytest.fixture(scope="module")
def renderer(robot):
    try:
        opened = RobotRenderer(robot, CAMERA.width, CAMERA.height)
    except MissingDependencyError as error:
        pytest.skip(f"no OpenGL here: {error}")
    with opened:
        yield opened


def picture_of(renderer, *arguments):
    return renderer.render(*arguments)[0]


def project(camera, points):
    return np.stack(
        [camera.fx * points[..., 0] / points[..., 2] + camera.cx,
         camera.fy * points[..., 1] / points[..., 2] + camera.cy], axis=-1)  # fmt: skip


def at(x=0.0, y=0.0, z=0.0):
    pose = FACING.copy()
    pose[:3, 3] += (x, y, z)
    return pose


@pytest.fixture()
def ball(tmp_path, renderer):
    """A robot that is one white ball of 4 mm, 30 mm off its base."""
    (tmp_path / "right.xml").write_text(
        '<mujoco><worldbody><body name="right_palm"><joint name="right_turn"/>'
        '<geom size="0.004" pos="0.03 0 0" group="2"/>'
        '<site name="right_tip" pos="0.03 0 0"/></body></worldbody></mujoco>'
    )
    (tmp_path / "robot.yaml").write_text(
        "{schema: acehand-robot/1, name: ball, title: Ball, license: none, "
        "files: {mjcf: '{side}.xml', urdf: x}, joints: {turn: {limits: [-3, 3]}}, "
        "commands: {turn: {joint: turn, register_zero: lower}}, register_range: [0, 1], "
        "keypoints: {index_tip: tip}, sides: {right: {}}}"
    )
    return load_robot(tmp_path)


@pytest.mark.parametrize("where", [(0.0, 0.0), (-0.15, -0.1), (0.12, 0.13)])
def test_a_ball_lands_on_its_projection(ball, where):
    pose = np.eye(4)
    pose[:3, 3] = (*where, 0.5)
    with RobotRenderer(ball, CAMERA.width, CAMERA.height) as renderer:
        picture = picture_of(renderer, CAMERA, {"right": np.zeros(1)}, {"right": pose})
    alpha = picture[..., 3] / 255.0
    rows, columns = np.mgrid[: CAMERA.height, : CAMERA.width]
    centroid = np.array([(alpha * columns).sum(), (alpha * rows).sum()]) / alpha.sum()
    expected = project(CAMERA, pose[:3, :3] @ (0.03, 0, 0) + pose[:3, 3])
    assert centroid == pytest.approx(expected, abs=0.12)
    disc = np.pi * (0.004 / 0.5) ** 2 * CAMERA.fx * CAMERA.fy
    assert alpha.sum() == pytest.approx(disc, rel=0.1)
    edge = (alpha > 0) & (alpha < 1)
    assert edge.any() and picture[edge][:, :3].min() > 40 and not picture[alpha == 0].any()


@pytest.mark.parametrize("side", ["left", "right"])
def test_tips_are_where_they_project(robot, renderer, side):
    hand = robot.hand(side)
    joints = hand.expand(hand.command_lower)
    picture = picture_of(renderer, CAMERA, {side: joints}, {side: FACING})
    tips = KinematicTree.of(hand).points(joints[None], hand.tip_names)[0]
    pixels = project(CAMERA, tips @ FACING[:3, :3].T + FACING[:3, 3])
    # Fingers point up in the image, so a tip is the first covered pixel of its column.
    for x, y in np.rint(pixels[1:]).astype(int):
        column = np.flatnonzero(picture[:, x, 3] > 127)
        assert abs(column.min() - y) <= 1.5


def test_only_the_given_hands_are_drawn(robot, renderer):
    joints = {side: robot.hand(side).expand(np.zeros(6)) for side in ("left", "right")}
    poses = {"left": at(x=-0.12), "right": at(x=0.1)}
    both = picture_of(renderer, CAMERA, joints, poses)
    right = picture_of(renderer, CAMERA, {"right": joints["right"]}, poses)
    left = picture_of(renderer, CAMERA, {"left": joints["left"]}, poses)
    assert right[..., 3].any() and left[..., 3].any()
    assert not (right[..., 3] > 0)[(left[..., 3] > 0)].any()
    assert np.array_equal(both[..., 3] > 0, (right[..., 3] > 0) | (left[..., 3] > 0))
    assert not picture_of(renderer, CAMERA, {}, {}).any()

    # Nor is one that was drawn before in the way.
    with RobotRenderer(robot, CAMERA.width, CAMERA.height) as other:
        alone = picture_of(other, CAMERA, {"left": joints["left"]}, poses)
    assert np.array_equal(left, alone)


@pytest.mark.parametrize(
    ("pose", "drawn"), [(at(z=-1.5), False), (at(x=5.0), False), (at(z=-0.45), True)],
    ids=["behind", "aside", "around the camera"],
)  # fmt: skip
def test_a_hand_out_of_view_leaves_nothing(robot, renderer, pose, drawn):
    joints = robot.hand("right").expand(np.zeros(6))
    picture = picture_of(renderer, CAMERA, {"right": joints}, {"right": pose})
    assert picture[..., 3].any() == drawn


@pytest.mark.parametrize("active", [(True, True), (False, True), (False, False)])
def test_painting_a_frame_is_laying_its_picture_over(robot, renderer, active):
    motion = motion_of(moving_hands(2), camera=CAMERA)
    whole = retarget_motion(motion, robot, base_limits=None)
    trajectory = dataclasses.replace(whole, active=np.array([active, active]))
    frame = 1, trajectory.T_frame_base[1]
    below = np.random.default_rng(0).integers(0, 255, (240, 320, 3), np.uint8)
    picture = renderer.render_frame(CAMERA, trajectory, *frame)[0].astype(float)
    alpha = picture[..., 3:] / 255
    wanted = np.round(picture[..., :3] * alpha + below * (1 - alpha)).astype(int)
    painted = below.copy()
    renderer.paint_frame(painted, CAMERA, trajectory, *frame)
    assert (painted != below).any() == any(active)
    assert np.abs(painted.astype(int) - wanted).max() <= 2  # of rounding at edges


@pytest.mark.parametrize("group", [0, 2, 5])
def test_only_visual_shapes_are_drawn(ball, tmp_path, group):
    """Whatever group the others are in: files of others have them in any."""
    file = tmp_path / "right.xml"
    more = f'<geom size="0.05" pos="0.03 0 0" group="{group}"/><site'
    file.write_text(file.read_text().replace("<site", more))
    with RobotRenderer(load_robot(tmp_path), CAMERA.width, CAMERA.height) as opened:
        picture = picture_of(opened, CAMERA, {"right": np.zeros(1)}, {"right": FACING})
    radius = 280 * (0.05 if group == 2 else 0.004) / 0.47
    assert (picture[..., 3] / 255).sum() == pytest.approx(np.pi * radius**2, rel=0.3)


def test_a_sheet_shows_the_base_frame_and_where_the_hand_closes(robot):
    """Before the palm of a right hand z goes up, y to the thumb at the right, x to the viewer."""
    sheet = robot_sheet(robot)
    assert sheet.shape == (560 * len(robot.hands), 4 * 560, 3)
    row = list(robot.hands).index("right") * 560
    opened, closed, aside = (sheet[row : row + 560, i * 560 : (i + 1) * 560] for i in range(3))
    ends = {}
    for name, panel in (("front", opened), ("side", aside)):
        for axis, colour in (("x", (214, 39, 40)), ("y", (34, 139, 34)), ("z", (31, 80, 210))):
            rows, columns = np.nonzero((panel == colour).all(axis=-1))
            ends[name, axis] = np.array([np.ptp(columns), np.ptp(rows)])
            ends[name, axis, "middle"] = np.array([columns.mean(), rows.mean()])
    assert ends["front", "z"][1] > 3 * ends["front", "z"][0]
    assert ends["front", "y"][0] > 3 * ends["front", "y"][1]
    assert ends["front", "y", "middle"][0] > ends["front", "z", "middle"][0]
    assert ends["side", "x"][0] > 3 * ends["side", "x"][1]
    # From the thumb's side x is at the left, where the fingertips go.
    assert ends["side", "x", "middle"][0] < ends["side", "z", "middle"][0]
    assert np.abs(opened.astype(int) - closed).mean() > 2


PROBE = """
import numpy as np
from acehand_core.errors import MissingDependencyError
from acehand_core.drawing.robot_renderer import RobotRenderer
from retarget.robots.robot import load_robot
try:
    RobotRenderer(load_robot("inspire"), 64, 48).close()
    print("drawn")
except MissingDependencyError as error:
    print("missing:", error)
"""


def run_probe(**variables):
    environment = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "DISPLAY")}
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment | variables, check=True,
                          cwd=ROOT, capture_output=True, text=True)  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("variables", [
    {"MUJOCO_GL": "no-such-backend"}, {"MUJOCO_GL": "disable"},
    {"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": "99"},  # no device, as in a bare container
])  # fmt: skip
def test_without_opengl_the_packages_are_named(variables):
    out = run_probe(**variables)
    assert out.startswith("missing:")
    for word in ("libegl1", "libgl1-mesa-dri", "MUJOCO_GL"):
        assert word in out


def test_without_display_or_variable_a_backend_is_found(renderer):
    assert run_probe().startswith("drawn")
