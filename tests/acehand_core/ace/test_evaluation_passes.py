"""What the network sees when segments are evaluated: the recording's latents, in one pass each."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from acehand_core.ace.evaluation.run import Options, evaluate_tracker
from acehand_core.ace.evaluation.tracking import Decoding, DoNothing, suited, track_segments
from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.model.batch import ClipBatch, pinhole_batch
from acehand_core.ace.model.config import InferenceConfig, SolveOptions
from acehand_core.ace.model.inference.loading import load_model
from acehand_core.ace.model.inference.windows import latents_over
from acehand_core.ace.model.network import place
from acehand_core.ace.model.weights import own
from acehand_core.ace.settings import AceSettings
from acehand_core.ace.tracker import AceTracker
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.selection import part
from acehand_core.trackers.base import TrackerSettings
from helpers import fake_ace as fake
from helpers import tiny_model
from helpers.commands import Acehand
from helpers.evaluation_samples import motion_of, still


class Truth:
    """One recording of the fake pictures and its segments, given by their first frames."""

    dataset = "fake"

    def __init__(self, frames, starts, length):
        self._recording = fake.recording(frames, frames=fake.Pictures(np.arange(frames) / 30))
        self._places = {f"clip--{start:06d}": (start, start + length) for start in starts}
        self.segments = tuple(self._places)
        self.summary = {"name": "fake", "sha256": "0" * 64, "count": len(starts)}

    @property
    def pictures_read(self):
        return self._recording.frames.reads

    def place(self, segment):
        return "clip", *self._places[segment]

    def recording(self, clip):
        return self._recording

    def truth(self, segment):
        start, stop = self._places[segment]
        times = self._recording.timestamps_ns[start:stop]
        return replace(motion_of(still(stop - start)), timestamps_ns=times, camera=fake.CAMERA)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny VAE and trunk of random weights, hands always there, the default hand's rotations."""
    run_as = InferenceConfig("intrinsics", "mixed", "released", "acehand", 0, None)
    path = tmp_path_factory.mktemp("weights") / "tiny"
    own.save_own(path, tiny_model.weights(licence="none", inference=run_as))
    return path


def tracker(folder, **ace):
    settings = AceSettings(folder, precision="float32", every_slot=True, read_rate="source", **ace)
    return AceTracker(TrackerSettings(own={"ace": settings}))


def by_hand(ready, latents, start, stop, size, camera, solve):
    """One pass over frames ``start`` to ``stop - 1``, cut and placed in plain steps."""
    first, last = start // 4, -(-(stop - 1) // 4)
    window = latents[..., first : last + 1, :, :]
    pixels = torch.tensor([size], dtype=torch.float32)
    with torch.no_grad():
        if ready.model.source.needs == "frames":
            flat = window.permute(1, 2, 0, 3, 4).flatten(1, 2)[:, 3:]
            batch = ClipBatch(None, pixels, frames=(flat.float() / 255 * 2 - 1)[None])
        else:
            batch = ClipBatch(window[None], pixels)
        readout = ready.model(batch)
        joints = TorchHands.acehand().joints(
            readout.global_orient, readout.hand_pose, readout.betas
        )
        found = place(readout, joints, pixels, pinhole_batch([camera]), solve)
    placed = (joints + found.translation[..., None, :])[0].numpy()
    return placed[start - 4 * first : stop - 4 * first], last + 1 - first


def test_segments_are_cut_from_the_latents_of_their_recording(folder):
    """Against the encoder, the network and the solver called by hand for every window."""
    starts, length = (0, 8, 13, 27, 31), 13
    truth = Truth(45, starts, length)
    found = dict(track_segments(tracker(folder, batch=3), truth, truth.segments))

    ready = load_model(folder, precision="float32")
    frames = np.stack([truth.recording("clip").frames.at(k) for k in range(45)])
    with torch.no_grad():
        latents = ready.encoder.encode(frames)
    solve = SolveOptions("intrinsics", "mixed", "released")
    for start, segment in zip(starts, truth.segments, strict=True):
        expected, seen = by_hand(
            ready, latents, start, start + length, fake.SIZE, fake.CAMERA, solve
        )
        assert seen == (4 if start % 4 == 0 else 5)  # as 81 frames have 21 latents, or 22
        motion = found[segment]
        np.testing.assert_allclose(motion.joints_camera, expected, rtol=1e-4, atol=1e-4)
        assert (motion.timestamps_ns == truth.truth(segment).timestamps_ns).all()
        recorded = motion.provenance.settings
        assert (recorded["decoded_frames"], recorded["decoded_latents"]) == (length, seen)

    # Encoded alone, a segment would begin with the encoder's special first frame.
    with torch.no_grad():
        alone = ready.encoder.encode(frames[8:21])
    lone, _ = by_hand(ready, alone, 0, length, fake.SIZE, fake.CAMERA, solve)
    assert np.abs(lone - found[truth.segments[1]].joints_camera).max() > 1e-3


def test_a_recording_is_read_once_however_many_segments_it_has(folder):
    for starts in ((0, 10, 20), range(0, 30, 2)):
        truth = Truth(45, starts, 13)
        out = dict(track_segments(tracker(folder), truth, truth.segments, Decoding(0)))
        assert truth.pictures_read == 45 and len(out) == len(starts)
        whole = next(iter(out.values())).provenance.settings
        assert (whole["decoded_frames"], whole["decoded_latents"]) == (45, 12)
    # What lies behind the last segment is not read, but for chunks of 16 that are decoded ahead.
    truth = Truth(150, (0, 5), 13)
    dict(track_segments(tracker(folder), truth, truth.segments))
    assert truth.pictures_read <= 64


@pytest.mark.few(1)
@pytest.mark.parametrize("frames", [81, 125, 0])
def test_decoded_length_is_what_the_network_sees(folder, frames):
    """The window begins at the segment and ends no later than the recording (paper)."""
    truth = Truth(150, (8, 70), 21)
    out = dict(track_segments(tracker(folder), truth, truth.segments, Decoding(frames)))
    latents = {81: [21, 22], 125: [32, 33], 0: [39, 39]}[frames]
    # 150 - 81 = 69 and 150 - 125 = 25 are no multiples of 4; 150 frames fill 39 latents.
    assert [m.provenance.settings["decoded_latents"] for m in out.values()] == latents
    result = evaluate_tracker(tracker(folder), truth, Options(), {}, Decoding(frames))
    (row,) = result["decoded_length"]
    assert (row["frames"], row["whole"]) == ((150, True) if frames == 0 else (frames, False))
    assert row["latents"] == [min(latents), max(latents)] and row["segments"] == 2


def test_a_lens_is_undistorted_only_for_those_who_cannot_see_to_it():
    """The paper's K-free configuration gets no camera information, so no picture made with it."""
    truth, seen = Truth(20, (0,), 13), []
    lens = Camera("kannala_brandt", *fake.SIZE, 40.0, 42.0, 31.0, 17.0, (0.01, 0.0, 0.0, 0.0))
    truth._recording = replace(truth._recording, camera=lens)

    class Watcher(DoNothing):
        def track(self, recording, progress=None):
            seen.append(recording.camera.model)
            return super().track(recording, progress)

    class PassWatcher(Watcher):
        trained_frames = None

        def track_passes(self, recording, spans, progress=None):
            return (self.track(part(recording, *span)) for span in spans)

    for tracker in (Watcher(), PassWatcher()):
        dict(track_segments(tracker, truth, truth.segments))
    assert seen == ["pinhole", "kannala_brandt"]


def test_windows_cut_the_recording_as_in_any_other_run(folder):
    truth = Truth(45, (0, 27), 13)
    ace = tracker(folder, windows="blended", run_as=InferenceConfig(window_latents=5))
    cut = dict(track_segments(ace, truth, truth.segments, Decoding(in_windows=True)))
    whole = ace.track(truth.recording("clip"))
    for segment, motion in cut.items():
        _, start, stop = truth.place(segment)
        np.testing.assert_array_equal(motion.joints_camera, whole.joints_camera[start:stop])
        assert motion.provenance.settings["decoded_frames"] == 17  # 5 latents
    with pytest.raises(InputError, match="decode_frames=30"):
        Decoding(30, in_windows=True)
    # So do weights that learned from less; one pass over more is for those who ask for it.
    for latents, in_windows in ((None, False), (4, False), (3, True)):
        ace = tracker(folder, run_as=InferenceConfig(window_latents=latents))
        assert suited(ace, truth, Decoding()) == Decoding(in_windows=in_windows)
        assert suited(ace, truth, Decoding(13)) == Decoding(13)
    assert suited(DoNothing(), truth, Decoding()) == Decoding()


def test_the_latents_of_one_pass_by_hand():
    """Latent i is frame 4 i and the three before it; the paper's 21 or 22 for 81 frames."""
    assert latents_over(0, 81, 100) == (0, 21)
    assert latents_over(81, 162, 100) == (20, 42)  # frames 80 to 164
    assert latents_over(84, 165, 100) == (21, 42)
    assert latents_over(0, 1, 100) == (0, 2)  # never a single latent
    assert latents_over(398, 400, 100) == (98, 100)


TRAINED = {
    "k": [],
    "fitted": ["model.variant=kfree", "solver=fitted"],
    "rays": ["model.variant=kfree", "solver=rays"],
    "direct": ["solve=direct"],
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", TRAINED)
def test_evaluation_without_flags_uses_what_was_trained(name, tmp_path, capsys, monkeypatch):
    """A model is trained, then scored by the command line; its hands against steps by hand."""
    pytest.importorskip("accelerate")
    from acehand_core.ace.training.config import compose
    from acehand_core.ace.training.loop import train
    from helpers.training_samples import store

    monkeypatch.delenv("ACEHAND_WEIGHTS", raising=False)
    clips = store(tmp_path / "clips", clips=1, frames=30, size=(96, 64))
    made = train(compose([
        "experiment=smoke", f"data.sources.synthetic.root={clips}", f"run={tmp_path / 'run'}",
        "++data.sources.synthetic.encode_width=64", "optim.steps=2", "optim.warmup_steps=0",
        "data.window.latents=3", *TRAINED[name],
    ]), lambda stage, done, total: None)  # fmt: skip
    run = Acehand(
        capsys, "evaluate", "--tracker", "ace", "--weights", made.weights, "--ground-truth", clips,
        "--segment-length", 9, "--keep", tmp_path / "kept", "--precision", "float32",
    )  # fmt: skip
    assert run.code == 0, run.err

    ready = load_model(made.weights, precision="float32")
    pictures = ClipStore(clips).open("clip0").recording()
    small = [cv2.resize(p, (64, 32), interpolation=cv2.INTER_AREA)
             for p in pictures.frames.read(0, 30)]  # fmt: skip
    latents = ready.encoder.stream().push(np.stack(small))
    view = pictures.camera
    camera = Camera("pinhole", 64, 32, view.fx * 64 / 96, view.fy * 32 / 64, view.cx * 64 / 96,
                    view.cy * 32 / 64)  # fmt: skip
    bearings = {"fitted": "pinhole", "rays": "rays"}.get(name, "intrinsics")
    how = "direct" if name == "direct" else "mixed"
    solve = SolveOptions(bearings, how, "released", "excess", "centres")
    for start in (0, 9, 18):
        segment = f"synthetic--clip0--{start:06d}"
        found = read_hand_motion(tmp_path / "kept" / f"{segment}.parquet")
        expected, seen = by_hand(ready, latents, start, start + 9, (64, 32), camera, solve)
        np.testing.assert_allclose(found.joints_camera, expected, rtol=1e-4, atol=1e-5)
        recorded = found.provenance.settings
        assert recorded["encode_size"] == [64, 32] and recorded["decoded_latents"] == seen
        assert recorded["solve"]["solve"] == solve.solve and found.hand_model == "acehand"
