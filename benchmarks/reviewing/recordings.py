"""Recordings of one lab: rendered clips of three people doing three things before one head camera.

What is drawn is the story of ``acehand synth`` (``make_episode``), with the lab's camera in place
of a random one, hands and skin of the person, and a short exposure. All three are right-handed:
where no large object needs both hands, the right hand works and the left one rests on the table.
Clips are taken in order of their index where the truth shows both hands in the picture nearly
always, as a lab would keep them; nothing that is measured afterwards is looked at here.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from acehand_core.ace.synthetic.appearance import random_appearance
from acehand_core.ace.synthetic.episode import SyntheticEpisode, SynthOptions, make_episode
from acehand_core.ace.synthetic.rendering import render_episode, truth_of
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import HandMotion
from acehand_core.types import ImageRgb

#: The head camera of the lab: 87 degrees across.
CAMERA = Camera("pinhole", 640, 480, 338.0, 338.4, 318.4, 241.3)
#: That of ``SynthOptions``.
FPS = 30
LENGTHS = (97, 109, 121)
SUBJECTS = ("anna", "ben", "chloe")
TASKS = {"objects": "pick up an object", "bimanual": "move a box", "gestures": "show gestures"}
#: A hand that rests moves by this share of what it would do otherwise.
RESTLESS = 0.1
#: Both hands are in sight (this share of their keypoints in the picture) in this share of frames.
IN_SIGHT, FRAMES_IN_SIGHT = 0.7, 0.8


@dataclass(frozen=True, slots=True)
class Clip:
    """A recording to draw: ``index`` of the ``seed``, and who does what in it."""

    seed: int
    index: int
    subject: str
    task: str
    frames: int

    @property
    def name(self) -> str:
        return f"clip_{self.index:03d}"


def clips(seed: int) -> Iterator[Clip]:
    """Yield the recordings of a lab that are worth keeping by the truth, in order, without end."""
    index = 0
    while True:
        rng = np.random.default_rng((seed, index, 3))
        subject, frames = str(rng.choice(SUBJECTS)), int(rng.choice(LENGTHS))
        clip = Clip(seed, index, subject, "", frames)
        episode = episode_of(clip)
        _, truth = truth_of(episode)
        in_sight = (truth.visible >= IN_SIGHT).mean(axis=0)
        if (in_sight >= FRAMES_IN_SIGHT).all():
            yield replace(clip, task=TASKS[episode.scenario])
        index += 1


def episode_of(clip: Clip) -> SyntheticEpisode:
    """Return all of a recording but its pixels."""
    options = SynthOptions(frames=clip.frames, cameras="pinhole", fast=True)
    episode = make_episode(clip.seed, clip.index, options)

    # A person has the same hands, skin and sleeves every day. Grasps were planned for others' hands
    # of nearly that shape: fingers may go some millimetres into what they hold.
    rng = np.random.default_rng((clip.seed, SUBJECTS.index(clip.subject), 4))
    person = random_appearance(rng)
    betas = np.clip(rng.normal(0, 0.9, 10), -2.2, 2.2)
    lights = tuple(replace(light, shadow=False) for light in episode.appearance.lights)
    appearance = replace(
        episode.appearance, skin=person.skin, sleeve=person.sleeve, arm=person.arm, lights=lights
    )
    script = replace(episode.script, betas=np.stack([betas, betas]))
    if episode.scenario != "bimanual" and script.hands[0]:
        resting = script.hands[0][0]
        left = tuple(
            replace(
                key,
                angles=resting.angles + RESTLESS * (key.angles - resting.angles),
                wrist_world=resting.wrist_world
                + RESTLESS * (key.wrist_world - resting.wrist_world),
                R_world_hand=resting.R_world_hand,
            )
            for key in script.hands[0]
        )
        holds = tuple(hold for hold in script.holds if hold.slot == 1)
        script = replace(script, hands=(left, script.hands[1]), holds=holds)
    return replace(
        episode,
        camera=CAMERA,
        appearance=appearance,
        sensor=replace(episode.sensor, shutter=0.0),
        script=script,
    )


def truth(clip: Clip) -> HandMotion:
    """Return the hands that a recording shows."""
    return truth_of(episode_of(clip))[1]


def record(todo: Sequence[Clip], folder: Path, processes: int) -> None:
    """Draw recordings as ``folder/NAME.mp4``; those that are there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [clip for clip in todo if not (folder / f"{clip.name}.mp4").is_file()]
    if not missing:
        return
    context = multiprocessing.get_context("spawn")  # a forked process would share OpenGL
    with ProcessPoolExecutor(processes, context) as pool:
        list(pool.map(_record, missing, [folder] * len(missing)))


def _record(clip: Clip, folder: Path) -> None:
    episode = episode_of(clip)
    drawn = render_episode(episode, *truth_of(episode))
    write_video(drawn.frames, folder / f"{clip.name}.mp4")


def read_video(path: Path) -> list[ImageRgb]:
    """Return all pictures of a video."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def write_video(pictures: Sequence[ImageRgb], path: Path) -> None:
    """Write pictures as a camera's software does: H.264, a constant rate."""
    partial = path.with_name(f".{path.name}")
    with av.open(str(partial), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "20"})
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for k, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = k, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    partial.replace(path)
