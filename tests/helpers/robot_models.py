"""Model files of hands made for the tests, with the structure of public ones; their truth is known.

A finger has a knuckle that spreads, if asked for, and hinges of 0 to 1.5 rad about -y of the file's
frame, whose palm looks along -x and whose fingers point along +z: the frame is not the base's.
"""

from __future__ import annotations

FINGERS = ("thumb", "index", "middle", "ring", "pinky")
#: Lengths of the links of a finger (m); its tip is at the end of the last.
LINKS = (0.045, 0.03, 0.022)
SPACING, HEIGHT = 0.022, 0.09
"""A right hand's fingers stand from +y (index) to -y, in our base frame."""


def hand_mjcf(
    fingers: tuple[str, ...] = FINGERS,
    side: str = "right",
    coupling: str = "equality",
    degrees: bool = False,
    names: bool = True,
    spread: bool = False,
    mesh: str = "",
) -> str:
    """Return an MJCF of a hand whose axes are turned by half a turn about z from the base frame.

    The last hinge follows the one before by a ``coupling``: "equality", "tendon" or "none". Fingers
    are called by ``names`` or f0, f1, ... and may begin with a knuckle that can ``spread``. Drawn
    for the palm is ``mesh``, a file in the folder ``assets``.
    """
    unit = 57.29577951308232 if degrees else 1.0
    sign = 1 if side == "right" else -1
    prefix = side[0] + "h_"
    calls = {f: f if names else f"f{i}" for i, f in enumerate(fingers)}
    bodies, equalities, tendons, actuators, excludes = [], [], [], [], []
    others = [f for f in fingers if f != "thumb"]
    for finger in fingers:
        call = prefix + calls[finger]
        if finger == "thumb":
            y = -sign * (SPACING * (len(others) - 1) / 2 + 0.02)
            place = f'pos="-0.01 {y:.4f} 0.03" euler="{-sign * 0.9 * unit:.6f} 0 0"'
            axis = f"0 -0.3 {-sign}"
        else:
            row = others.index(finger) - (len(others) - 1) / 2
            place = f'pos="0 {sign * SPACING * row:.4f} {HEIGHT}"'
            axis = "0 -1 0"
        body, close, parent = "", "", ""
        if spread:
            limits = f"{-0.3 * unit:.6f} {0.3 * unit:.6f}"
            body += (
                f'<body name="{call}_knuckle" {place}><joint name="{call}_s" axis="1 0 0" '
                f'range="{limits}"/><geom type="sphere" size="0.008"/>'
            )
            close, place = "</body>", 'pos="0 0 0.001"'
            actuators.append(f'<position name="{call}_s" joint="{call}_s" kp="1"/>')
        for i, length in enumerate(LINKS):
            end = f"0 0 {length}"
            body += (
                f'<body name="{call}_{i}" {place}><joint name="{call}_{i}" axis="{axis}" '
                f'range="0 {1.5 * unit:.6f}"/><geom class="collision" type="capsule" '
                f'fromto="0 0 0 {end}" size="0.007"/>'
            )
            place, close = f'pos="0 0 {length}"', close + "</body>"
            if parent:
                excludes.append(f'<exclude body1="{parent}" body2="{call}_{i}"/>')
            parent = f"{call}_{i}"
        bodies.append(body + close)
        driven = [0, 1] if coupling != "none" else [0, 1, 2]
        if coupling == "equality":
            equalities.append(
                f'<joint joint1="{call}_2" joint2="{call}_1" polycoef="0 0.8 0 0 0"/>'
            )
        if coupling == "tendon":
            driven = [0]
            tendons.append(
                f'<fixed name="{call}_t"><joint joint="{call}_1" coef="1"/>'
                f'<joint joint="{call}_2" coef="1"/></fixed>'
            )
            actuators.append(f'<position name="{call}_t" tendon="{call}_t" kp="1"/>')
        actuators += [
            f'<position name="{call}_{i}" joint="{call}_{i}" kp="1" forcerange="-2 2" '
            f'ctrlrange="0 {1.5 * unit:.6f}"/>'
            for i in driven
        ]
    return f"""<mujoco model="{side}_made">
  <compiler angle="{"degree" if degrees else "radian"}" meshdir="assets" autolimits="true"/>
  <default><default class="collision"><geom group="3"/></default></default>
  {f'<asset><mesh name="palm" file="{mesh}"/></asset>' if mesh else ""}
  <worldbody><body name="{prefix}palm" pos="0.3 0 0.2" quat="0 1 0 0">
    <geom type="box" size="0.012 0.045 0.045" pos="0 0 0.045" class="collision"/>
    {'<geom type="mesh" mesh="palm" contype="0" conaffinity="0" group="2"/>' if mesh else ""}
    {"".join(bodies)}
  </body></worldbody>
  <contact>{"".join(excludes)}</contact><equality>{"".join(equalities)}</equality>
  <tendon>{"".join(tendons)}</tendon><actuator>{"".join(actuators)}</actuator></mujoco>"""
