"""Whole recordings through a network whose every answer is known, and through tiny real parts."""

import hashlib
import io
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from acehand_core.ace import tracker as ace_tracker
from acehand_core.ace.commands import evaluate
from acehand_core.ace.evaluation.tracking import Decoding
from acehand_core.ace.model.batch import ClipBatch, Readout, pinhole_batch
from acehand_core.ace.model.config import RELEASED, InferenceConfig, ModelConfig, SolveOptions
from acehand_core.ace.model.encoder.vae import PixelEncoder, VideoEncoder, unpack
from acehand_core.ace.model.inference import loading, reading, windows
from acehand_core.ace.model.inference.blend import recording_betas
from acehand_core.ace.model.inference.loading import InferenceOptions, solve_options
from acehand_core.ace.model.inference.reading import plan_input
from acehand_core.ace.model.inference.reconstruction import reconstruct
from acehand_core.ace.model.inference.windows import latents_of
from acehand_core.ace.model.network import AceModel, place
from acehand_core.ace.model.weights import own, storage
from acehand_core.ace.model.weights.load import load_weights
from acehand_core.ace.model.weights.state import TrainingSource
from acehand_core.ace.settings import AceSettings, read_betas
from acehand_core.ace.tracker import AceTracker
from acehand_core.cli import retarget
from acehand_core.cli.console import Bars
from acehand_core.cli.flags import parse
from acehand_core.cli.main import main
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.mano import load_mano
from acehand_core.lerobot.dataset import FinishedEpisodes
from acehand_core.motion import Recording
from acehand_core.pipeline.job import run_job
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.safe_files import content_sha256
from acehand_core.trackers import choose
from acehand_core.trackers.base import TrackerSettings, resolved_name
from helpers import fake_ace as fake
from helpers import tiny_model
from helpers.example_video import EXAMPLE
from helpers.fake_ace import FakeEncoder, FakeModel, motion
from helpers.weights_samples import flip_bit, write_repackaged

OPTIONS = InferenceOptions(encode_width=0)


def run(recording=None, model=None, hands=fake.HANDS, options=OPTIONS, **more):
    recording = fake.recording() if recording is None else recording
    return reconstruct(
        recording, model or FakeModel(), FakeEncoder(), hands, fake.WEIGHTS, options, **more
    )


def same(first, second, tolerance=0.0):
    for name in ("presence", "visible", "quality", "observed", "filled", "global_orient",
                 "hand_pose", "betas", "translation", "joints_camera", "joints_image"):  # fmt: skip
        a, b = getattr(first, name), getattr(second, name)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance, err_msg=name)


def assert_posed(found, hand, atol=1e-6):
    """The joints are those of the hand model at the motion's own parameters."""
    for slot, side in enumerate(("left", "right")):
        at = np.flatnonzero(found.known[:, slot])
        posed = hand.joints(
            side, found.global_orient[at, slot], found.hand_pose[at, slot],
            np.broadcast_to(found.betas[slot], (len(at), 10)),
        )  # fmt: skip
        posed = posed + found.translation[at, slot, None]
        np.testing.assert_allclose(found.joints_camera[at, slot], posed, atol=atol)


@pytest.mark.parametrize(
    ("windows", "batch"), [("full", 1), ("paper", 1), ("blended", 1), ("blended", 3)]
)
def test_a_known_motion_comes_back(windows, batch):
    count = 253  # 64 latents: several windows, and no tail
    found = run(fake.recording(count), options=replace(OPTIONS, windows=windows, batch=batch))
    truth = motion(np.arange(count))
    np.testing.assert_allclose(found.joints_camera, truth["joints"], atol=2e-5)
    np.testing.assert_allclose(found.global_orient, truth["orient"], atol=2e-5)
    np.testing.assert_allclose(found.hand_pose, truth["pose"], atol=2e-5)
    np.testing.assert_allclose(found.betas, fake.BETAS, atol=1e-6)
    expected = fake.CAMERA.project(truth["joints"])
    np.testing.assert_allclose(found.joints_image, expected, atol=1e-4)
    assert found.observed.all() and (found.quality == 1).all()
    assert found.hand_model == "acehand" and found.camera == fake.CAMERA


def test_blending_fades_where_windows_disagree():
    def deeper(readout, start):
        camera = readout.camera.clone()
        camera[..., 2] += 0.2 * (start > 0)
        return replace(readout, camera=camera)

    model = FakeModel(distort=deeper)
    options = replace(OPTIONS, solve=SolveOptions("intrinsics", solve="inverse"))
    cut = run(fake.recording(153), model, options=replace(options, windows="paper"))
    faded = run(fake.recording(153), model, options=replace(options, windows="blended"))
    truth = motion(np.arange(153))["joints"][:, :, 0]
    for found, largest, ramp in ((cut, 0.2, 1), (faded, 0.02, 21)):
        wrist = found.joints_camera[:, :, 0, 2]
        steps = np.diff(np.log(wrist / truth[..., 2]), axis=0)
        assert np.abs(steps).max() < 1.1 * largest
        assert ramp <= (np.abs(steps[:, 0]) > 5e-3).sum() <= ramp + 1
        assert np.abs(rotations.log(found.global_orient)).max() < np.pi


@pytest.mark.parametrize("count", [1, 2, 4, 5, 6, 7, 8, 9, 86, 88])
def test_every_frame_is_kept(count):
    found = run(fake.recording(count))
    assert len(found) == count and found.observed.all()
    # The last frame of a group is seen where the clip was filled up, the others between.
    truth = motion(np.arange(count))["joints"]
    np.testing.assert_allclose(found.joints_camera, truth, atol=0.02)


def test_dropping_the_tail_as_released():
    found = run(fake.recording(23), options=replace(OPTIONS, tail="drop"))
    assert len(found) == 23
    assert found.observed[:21].all() and not found.known[21:].any()
    assert np.isnan(found.joints_camera[21:]).all() and (found.presence[21:] == 0).all()


@pytest.mark.parametrize(
    ("recording", "options", "named"),
    [
        (fake.recording(4), {"tail": "drop"}, "5 or more"),
        (fake.recording(camera=None), {}, r"`intrinsics` or `camera`.*kfree"),
        (fake.recording(frames=None), {}, "needs a video"),
    ],
)
def test_recordings_that_cannot_be_reconstructed_are_refused(recording, options, named):
    with pytest.raises(InputError, match=named):
        run(recording, options=replace(OPTIONS, **options))


def test_the_motion_keeps_its_definition_and_survives_its_file(tmp_path):
    def presence(times, mirrored):
        return np.stack([0.5 + 0.5 * np.sin(times / 9), np.full(len(times), 0.9)], axis=1)

    def visible(times):
        return np.stack([np.full(len(times), 0.8), (times < 20) * 0.9], axis=1)

    found = run(model=FakeModel(presence=presence, visible=visible))
    known = found.known
    np.testing.assert_array_equal(known, found.presence >= 0.5)
    np.testing.assert_array_equal(found.observed, known & (found.visible >= 0.5))
    assert (known & ~found.observed).any() and (~known).any()
    product = found.presence * found.visible
    np.testing.assert_allclose(found.quality[found.observed], product[found.observed], atol=1e-6)
    np.testing.assert_allclose(
        found.quality[found.filled], 0.25 * found.presence[found.filled], atol=1e-6
    )
    assert (found.quality[~known] == 0).all()
    for name in ("joints_camera", "global_orient", "hand_pose", "translation"):
        value = getattr(found, name)
        finite = np.isfinite(value.reshape(len(value), 2, -1)).all(-1)
        np.testing.assert_array_equal(finite, known, err_msg=name)
    np.testing.assert_array_equal(np.isfinite(found.joints_image).all((2, 3)), found.observed)
    assert_posed(found, CapsuleHand())
    write_hand_motion(found, tmp_path / "hands.parquet")
    back = read_hand_motion(tmp_path / "hands.parquet")
    same(found, back)
    assert back.provenance.settings["encode_size"] == [64, 32]
    assert back.provenance.weights == f"fake (sha256 {'ab' * 32})"
    assert back.provenance.licenses == ("fake licence",)


def test_every_slot_is_given_for_scoring(tmp_path):
    """Absent hands keep their flags; their poses are what the network gives."""

    def presence(times, mirrored):
        return np.stack([np.where(times < 25, 0.9, 0.1), np.full(len(times), 0.2)], axis=1)

    every, model = replace(OPTIONS, every_slot=True), FakeModel(presence=presence)
    usual = run(fake.recording(49), model)
    found = run(fake.recording(49), model, options=every)
    assert np.isnan(usual.joints_camera[~usual.known]).all() and (~usual.known).any()
    for name in ("presence", "visible", "quality", "observed", "filled"):
        np.testing.assert_array_equal(getattr(found, name), getattr(usual, name))
    truth = motion(np.arange(len(found)))
    assert np.isnan(usual.joints_image[~usual.observed]).all()
    pixels = fake.CAMERA.project(truth["joints"])
    np.testing.assert_allclose(found.joints_image, pixels, atol=1e-3)
    np.testing.assert_allclose(found.joints_camera, truth["joints"], atol=2e-5)
    np.testing.assert_allclose(found.global_orient, truth["orient"], atol=2e-5)
    write_hand_motion(found, tmp_path / "x.parquet")
    same(read_hand_motion(tmp_path / "x.parquet"), found)
    fitted = run(fake.recording(9), model, hands=None, options=every)
    assert np.isfinite(fitted.joints_camera).all() and not fitted.known[:, 1].any()
    left = run(fake.recording(9), model, options=replace(every, hands="left"))
    assert np.isnan(left.joints_camera[:, 1]).all() and np.isfinite(left.joints_camera[:, 0]).all()


def test_evaluation_scores_every_slot(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "acehand_core.ace.evaluation.run.evaluate_tracker", lambda *a: asked.append(a) or {}
    )
    words = ["--tracker", "ace", "--weights", "x"]
    for more in ([], ["--read-rate", "model", "--windows", "blended"]):
        (command,) = parse("", words + more, evaluate.Evaluate)
        truth = SimpleNamespace(dataset="made-up")
        command._track("ace", truth, None, Bars(True, io.StringIO()))
        used = asked[-1][3]["own"]["ace"]
        assert used["every_slot"] and not command.tracking.own["ace"].every_slot
    assert [one[3]["own"]["ace"]["read_rate"] for one in asked] == ["source", "model"]
    assert [one[4] for one in asked] == [Decoding(), Decoding(in_windows=True)]


@pytest.mark.parametrize("hands", ["left", "right"])
def test_one_hand_on_request(hands):
    found = run(options=replace(OPTIONS, hands=hands))
    slot = ("left", "right").index(hands)
    assert found.observed[:, slot].all() and not found.known[:, 1 - slot].any()
    assert (found.presence[:, 1 - slot] == 0).all()


def test_a_second_opinion_multiplies_presence_and_removes_a_ghost():
    def presence(times, mirrored):
        return np.tile([0.1, 0.9] if mirrored else [0.9, 0.9], (len(times), 1))

    model = FakeModel(presence=presence, visible=lambda times: np.tile([0.8, 1.0], (len(times), 1)))
    plain = run(model=model)
    assert plain.observed.all()
    found = run(model=model, options=replace(OPTIONS, second_opinion=True))
    # What the mirror calls right (0.9) is the left hand.
    assert found.observed[:, 0].all() and not found.known[:, 1].any()
    np.testing.assert_allclose(found.presence[:, 0], 0.81, atol=1e-6)
    np.testing.assert_allclose(found.visible, plain.visible**2, atol=1e-6)
    np.testing.assert_allclose(found.joints_camera[:, 0], plain.joints_camera[:, 0], atol=1e-6)
    np.testing.assert_allclose(found.quality[:, 0], 0.81 * 0.64, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("second_opinion", [False, True])
def test_an_interrupted_run_resumes(tmp_path, second_opinion):
    options = replace(OPTIONS, windows="blended", second_opinion=second_opinion)
    clip = fake.recording(1200)
    whole = FakeModel()
    expected = run(clip, whole, options=options)
    first = FakeModel()

    def stop_late(stage, done, total):
        if done >= 900:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(clip, first, options=options, work_dir=tmp_path, progress=stop_late)
    assert 0 < first.calls < whole.calls
    clip.frames.reads = 0
    second = FakeModel()
    found = run(clip, second, options=options, work_dir=tmp_path)
    same(expected, found)
    assert first.calls + second.calls == whole.calls
    assert clip.frames.reads < 1200  # encoding starts late, too
    third = FakeModel()
    same(expected, run(clip, third, options=options, work_dir=tmp_path))
    assert third.calls == 0


def test_stored_results_belong_to_their_input_weights_and_settings(tmp_path):
    run(work_dir=tmp_path)
    for changes in (
        {"recording": fake.recording(sha256="ee" * 32)},
        {"recording": fake.recording(processing={"mirrored": True})},
        {"recording": fake.recording(49)},
        {"options": replace(OPTIONS, encode_width=128)},
        {"options": replace(OPTIONS, precision="float32")},
    ):
        model = FakeModel()
        run(model=model, work_dir=tmp_path, **changes)
        assert model.calls == 1, changes
    model = FakeModel()
    other = replace(fake.WEIGHTS, sha256="ef" * 32)
    clip = fake.recording()
    reconstruct(clip, model, FakeEncoder(), fake.HANDS, other, OPTIONS, work_dir=tmp_path)
    assert model.calls == 1
    # The camera never enters the network, and a recording without a hash is never recognised.
    model = FakeModel()
    run(fake.recording(camera=replace(fake.CAMERA, fx=50.0)), model, work_dir=tmp_path)
    assert model.calls == 0
    unknown = fake.recording(sha256=None)
    run(unknown, work_dir=tmp_path)
    run(unknown, model, work_dir=tmp_path)
    assert model.calls == 1


def test_a_damaged_result_is_made_again(tmp_path):
    expected = run(fake.recording(300), work_dir=tmp_path)
    files = sorted(tmp_path.iterdir())
    files[1].write_bytes(files[1].read_bytes()[:-2000])
    model = FakeModel()
    same(expected, run(fake.recording(300), model, work_dir=tmp_path))
    assert model.calls == 1


@pytest.mark.parametrize("bearings", ["rays", "centres", "pinhole", "radial"])
def test_kfree_brings_its_own_camera(bearings):
    model = FakeModel(ModelConfig(variant="kfree"))
    centres = SolveOptions("rays", ray_cells="centres")
    solve = centres if bearings == "centres" else SolveOptions(bearings)
    options = replace(OPTIONS, solve=solve, encode_width=640)
    found = run(fake.recording(camera=None), model, options=options)
    tolerance = {"rays": 0.03, "centres": 1e-4, "pinhole": 1e-4, "radial": 2e-3}[bearings]
    truth = motion(np.arange(49))["joints"]
    np.testing.assert_allclose(found.joints_camera[:49], truth, atol=tolerance)
    camera = found.camera
    pixels = camera.project(truth)
    np.testing.assert_allclose(pixels, fake.CAMERA.project(truth), atol=0.2)
    assert any("network's own" in note for note in found.provenance.notes)


def test_a_fisheye_is_undistorted_for_variant_k():
    lens = Camera("kannala_brandt", *fake.SIZE, 40.0, 42.0, 31.0, 17.0, (0.02, 0.0, 0.0, 0.0))
    model = FakeModel(camera=lens.whole_view())
    found = run(fake.recording(camera=lens), model)
    truth = motion(np.arange(49))["joints"]
    np.testing.assert_allclose(found.joints_camera[:49], truth, atol=1e-4)
    assert found.camera == lens
    np.testing.assert_allclose(found.joints_image[:49], lens.project(truth), atol=1e-3)
    assert any("undistorted" in note for note in found.provenance.notes)


@pytest.mark.parametrize(("fps", "tolerance"), [(60, 2e-4), (24, 0.03), (10, 0.03), (240, 2e-4)])
def test_other_rates_come_back_at_their_own_times(fps, tolerance):
    seconds = np.arange(2 * fps + 1) / fps
    found = run(fake.recording(fps=float(fps), seconds=seconds))
    assert len(found) == len(seconds)
    np.testing.assert_array_equal(found.timestamps_ns, np.round(seconds * 1e9).astype(int))
    truth = motion(seconds * 30)["joints"]
    middle = slice(0, -fps // 6)
    np.testing.assert_allclose(found.joints_camera[middle], truth[middle], atol=tolerance)
    assert any("interpolated back" in note for note in found.provenance.notes)


def test_frames_are_resampled_only_where_that_is_needed():
    steady = plan_input(fake.recording(40, 29.97), (64, 32), "repeat")
    assert not steady.resampled and steady.count == 41
    uneven = np.cumsum(np.tile([1 / 60, 1 / 15], 20))
    assert plan_input(fake.recording(fps=24.0, seconds=uneven), (64, 32), "repeat").resampled
    # 81 labels at 15 fps are 161 frames to the model, or 81 on request.
    slow = fake.recording(fps=15.0, seconds=np.arange(81) / 15)
    assert plan_input(slow, fake.SIZE, "repeat").count == 161
    assert plan_input(slow, fake.SIZE, "repeat", every_frame=True).count == 81
    found = run(slow, options=replace(OPTIONS, every_frame=True))
    truth = motion(2.0 * np.arange(81))["joints"]  # in 1/30 s
    np.testing.assert_allclose(found.joints_camera, truth, atol=2e-4)
    assert not any("interpolated back" in note for note in found.provenance.notes)


def test_without_a_hand_model_the_networks_joints_are_placed():
    found = run(fake.recording(49), hands=None)
    truth = motion(np.arange(49))["joints"]
    assert found.hand_model == "acehand"
    error = np.linalg.norm(found.joints_camera - truth, axis=-1)
    assert error.mean() < 6e-3 and error.max() < 0.02
    assert any("no MANO files" in note for note in found.provenance.notes)
    assert found.provenance.settings["solve"]["solve"] == "rigid"
    assert_posed(found, CapsuleHand())


def test_one_shape_for_the_recording_and_the_joints_follow_it():
    def first_is_wrong(readout, start):
        return replace(readout, betas=readout.betas + (8.0 if start == 0 else 0.0))

    clip = fake.recording(501)
    found = run(clip, FakeModel(distort=first_is_wrong))
    assert np.abs(found.betas - fake.BETAS).max() < 0.5  # one window in six is wrong
    given = fake.BETAS + 1.0
    found = run(clip, FakeModel(distort=first_is_wrong), betas=given)
    np.testing.assert_allclose(found.betas, given)
    # Placed again with it: the anchors are met as well as this shape can.
    truth = motion(np.arange(501))
    other = motion(np.arange(501), given)
    shift = found.joints_camera - other["joints"]
    np.testing.assert_allclose(shift, np.broadcast_to(shift[:, :, :1], shift.shape), atol=1e-5)
    assert np.abs(shift).max() > 1e-4  # decoding again moved the hand
    pixels = fake.CAMERA.project(found.joints_camera.astype(float))
    unmoved = fake.CAMERA.project(other["joints"])
    expected = fake.CAMERA.project(truth["joints"])
    assert np.abs(pixels - expected).mean() < np.abs(unmoved - expected).mean()


def test_windows_that_do_not_see_a_hand_do_not_vote_on_its_shape():
    def window(betas, visible):
        return {
            "betas": np.full((1, 2, 10), betas, np.float32),
            "presence": np.full((1, 9, 2), 0.9),
            "visible": np.full((1, 9, 2), visible),
        }

    found = recording_betas([window(1.0, 0.9), window(-9.0, 0.2), window(1.2, 0.9)])
    np.testing.assert_allclose(found, 1.1, atol=1e-6)
    np.testing.assert_allclose(recording_betas([window(1.0, 0.1), window(1.2, 0.1)]), 1.1)


def test_exchanged_hands_are_reported_and_not_faded():
    def swap(readout, start):
        if start == 0:
            return readout
        names = ("global_orient", "hand_pose", "anchors", "joints_relative", "wrist", "camera")
        return replace(readout, **{n: getattr(readout, n).flip(2) for n in names})

    found = run(
        fake.recording(120), FakeModel(distort=swap), hands=None,
        options=replace(OPTIONS, windows="blended"),
    )  # fmt: skip
    assert any("left and right exchanged" in note for note in found.provenance.notes)
    x = found.joints_camera[:, 0, 0, 0]
    truth = motion(np.arange(120))["joints"][:, :, 0, 0]
    assert np.abs(x[:, None] - truth).min(1).max() < 0.02  # always at one of the two hands
    clean = run(fake.recording(120), options=replace(OPTIONS, windows="blended"))
    assert not any("exchanged" in note for note in clean.provenance.notes)


def test_latents_are_held_only_while_a_window_needs_them(monkeypatch):
    held = []
    take = reading.ViewReader.take

    def watched(self, latents):
        take(self, latents)
        held.append(self.latents.shape[-3])

    monkeypatch.setattr(reading.ViewReader, "take", watched)
    run(fake.recording(2000), options=replace(OPTIONS, windows="blended"))
    assert max(held) < 22 + 4


@pytest.mark.parametrize("pushes", [[21], [1, 4, 16], [3, 7, 11], [2, 1, 1, 9, 8]])
def test_pixels_come_back_on_the_grid_of_latents(pushes):
    frames = np.random.default_rng(0).integers(0, 256, (23, 4, 6, 3), np.uint8)
    stream, begin, packed = PixelEncoder().stream(), 0, []
    for count in (*pushes, 2):
        packed.append(stream.push(frames[begin : begin + count]))
        begin += count
    packed = torch.cat([*packed, stream.finish()], dim=-3)
    assert packed.shape[-3] == latents_of(23) == 6
    expected = torch.from_numpy(frames).permute(3, 0, 1, 2).float() / 255 * 2 - 1
    torch.testing.assert_close(unpack(packed), expected[:, :21])
    torch.testing.assert_close(unpack(packed[..., 2:5, :, :]), expected[:, 8:17])


def test_a_network_that_reads_frames_gets_them():
    def read(batch):
        assert batch.latents is None
        middle = (batch.frames[..., 16, 32] + 1) / 2 * 255
        times = (middle[:, 0] * 256 + middle[:, 1]).round() / 8
        cells = tuple(n // 16 for n in batch.frames.shape[-2:])
        rows = [truth.read(row.double().numpy(), False, cells) for row in times]
        names = Readout.__dataclass_fields__
        return Readout(**{n: torch.cat([getattr(r, n) for r in rows]) for n in names})

    truth = FakeModel()
    read.config = truth.config
    found = reconstruct(
        fake.recording(150), read, PixelEncoder(), fake.HANDS, fake.WEIGHTS,
        replace(OPTIONS, windows="blended", batch=2),
    )  # fmt: skip
    np.testing.assert_allclose(found.joints_camera, motion(np.arange(150))["joints"], atol=2e-5)


def test_a_stream_that_starts_late_gives_the_same_latents():
    encoder = tiny_model.encoder()
    late, count = 5, reading.WARM_UP_LATENTS + 8
    frames = np.random.default_rng(0).integers(0, 256, (4 * (late + count) + 1, 32, 32, 3), "u1")
    whole = encoder.encode(frames, round_to_half=False)
    fresh = encoder.encode(frames[4 * late :], round_to_half=False)
    warm = reading.WARM_UP_LATENTS
    torch.testing.assert_close(fresh[:, warm:], whole[:, late + warm :], rtol=0, atol=2e-5)
    assert (fresh[:, :8] - whole[:, late : late + 8]).abs().max() > 1e-3


@pytest.fixture(scope="module", params=["k", "kfree"])
def weights_folder(request, tmp_path_factory):
    """A tiny model of random weights in our own format."""
    weights = tiny_model.weights(
        replace(tiny_model.MODEL, variant=request.param), licence="unusual",
        training_data=(TrainingSource("arctic", "real"),),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("weights") / "tiny"
    own.save_own(folder, weights)
    return folder


def track(folder, recording, settings=None, **ace):
    own = {"ace": AceSettings(folder, run_as=InferenceConfig(encode_width=0), **ace)}
    return AceTracker(replace(settings or TrackerSettings(), own=own)).track(recording)


def test_the_tracker_equals_its_parts_called_by_hand(weights_folder, monkeypatch):
    monkeypatch.setattr(ace_tracker, "has_mano", lambda: True)
    monkeypatch.setattr(ace_tracker, "mano_hands", lambda: fake.HANDS)
    ace_tracker._load.cache_clear()
    pictures = fake.Pictures(np.arange(29) / 30)
    clip = fake.recording(29, frames=pictures)
    found = track(weights_folder, clip, windows="full", precision="float32")

    weights = load_weights(weights_folder)
    model = AceModel.from_weights(weights, "float32")
    encoder = VideoEncoder.from_tensors(weights.config.vae, weights.vae, "float32")
    frames = np.stack(list(pictures.read(0, 29)))
    size = torch.tensor([fake.SIZE], dtype=torch.float32)
    with torch.no_grad():
        readout = model(ClipBatch(encoder.encode(frames)[None], size))
        joints = fake.HANDS.joints(readout.global_orient, readout.hand_pose, readout.betas)
        camera = pinhole_batch([fake.CAMERA])
        solve = RELEASED[model.config.variant]
        placed = place(readout, joints, size, camera, solve)
    expected = joints[0] + placed.translation[0][:, :, None]
    assert found.known.all()
    np.testing.assert_allclose(found.joints_camera, expected.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.betas, readout.betas[0].numpy(), atol=1e-5)
    np.testing.assert_allclose(found.presence, readout.presence[0].numpy(), atol=1e-5)
    assert found.provenance.licenses == ("unusual",)
    assert found.provenance.settings["variant"] == model.config.variant
    assert found.provenance.versions["torch"]


@pytest.mark.parametrize("weights_folder", ["k"], indirect=True)
def test_weights_without_a_record_are_run_as_released_and_others_as_they_were_trained(
    weights_folder, tmp_path
):
    """``test_evaluation_passes`` holds what comes out against the parts called by hand."""
    k = solve_options("k", has_hand_model=True)
    assert k == RELEASED["k"] and solve_options("k", False).solve == "rigid"
    assert solve_options("k", False, InferenceConfig(solve="direct")).solve == "direct"
    settings = AceSettings(weights_folder, precision="float32")
    assert settings.run_as.applied_to(settings.trained()) == (InferenceConfig(), ())
    # Of a field's cells as released; of fits, which the released code has none of, with our guards.
    free = solve_options("kfree", True, InferenceConfig(bearings="pinhole"))
    assert (free.fit_guards, free.ray_cells) == ("excess", "edges")

    trained = InferenceConfig("rays", "mixed", "paper", "acehand", 64, 3, "excess", "centres")
    weights = load_weights(weights_folder)
    kfree = replace(weights, config=replace(weights.config, variant="kfree"), inference=trained)
    own.save_own(tmp_path / "own", kfree)
    clip = fake.recording(9)
    settings = replace(settings, weights=tmp_path / "own")
    run_as = InferenceConfig(solve="rigid", encode_width=96, window_latents=5)
    asked = replace(settings, run_as=run_as)
    found, other = (
        AceTracker(TrackerSettings(own={"ace": one})).track(clip).provenance
        for one in (settings, asked)
    )
    solve = SolveOptions("rays", "mixed", "paper", "excess", "centres")
    for recorded, how, width in ((found, "mixed", 3), (other, "rigid", 5)):
        assert recorded.settings["solve"] == asdict(replace(solve, solve=how))
        assert recorded.settings["window_latents"] == width
    notes = " ".join(other.notes)
    assert "solve rigid" in notes and "mixed" in notes
    assert "encode_width 96" in notes and "with 64" in notes
    assert "trained with" not in " ".join(found.notes)


@pytest.mark.parametrize("weights_folder", ["kfree"], indirect=True)
def test_the_command_line_writes_a_table(weights_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("ACEHAND_MANO", raising=False)
    ace_tracker._load.cache_clear()
    output = tmp_path / "hands.parquet"
    command = ["reconstruct", str(EXAMPLE), "--tracker", "ace", "--variant", "kfree", "--duration",
               "0.5", "--encode-width", "64", "--precision", "float32", "--hands", "left", "--json",
               "--quiet", "--output", str(output)]  # fmt: skip
    assert main(command) == 2
    assert "`weights=PATH`" in json.loads(capsys.readouterr().out)["errors"][0]["message"]
    assert main([*command, "--weights", str(weights_folder)]) == 0
    report = json.loads(capsys.readouterr().out)
    found = read_hand_motion(output)
    assert len(found) == report["frames"] and found.known[:, 0].all()
    assert found.provenance.tracker == "ace" and found.provenance.settings["hands"] == "left"
    wrong = [*command, "--weights", str(weights_folder), "--overwrite"]
    wrong[wrong.index("kfree")] = "k"
    assert main(wrong) == 2


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"variant": "q"}, "`variant='q'`; valid: k, kfree"),
        ({"windows": "blend"}, "'blended'"),
        ({"run_as": InferenceConfig(encode_width=5000)}, "`encode_width=5000`; valid: 0 to"),
        ({"run_as": InferenceConfig(solve="rigit")}, "'rigid'"),
        ({"run_as": InferenceConfig(fallback="papers")}, "'paper'"),
        ({"run_as": InferenceConfig(fit_guards="paper's")}, "'paper'"),
        ({"run_as": InferenceConfig(ray_cells="edge")}, "'edges'"),
        ({"run_as": InferenceConfig(hand_model="manos")}, "'mano'"),
        ({"run_as": InferenceConfig(window_latents=1)}, "`window_latents=1`; valid: 2 to"),
        ({"batch": 0}, "`batch=0`"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, monkeypatch, values, named):
    with pytest.raises(InputError, match=named):
        AceSettings(tmp_path, **values)
    own = {"ace": AceSettings(tmp_path)}
    with pytest.raises(InputError, match="`betas`"):
        AceTracker(TrackerSettings(hand_length_m=0.19, own=own))
    without = Recording("a.mp4", None, np.array([0]), 30.0, 64, 48, None)
    with pytest.raises(InputError, match=r"a\.mp4.*`use_depth`"):
        settings = TrackerSettings(own={"ace": AceSettings(tmp_path, use_depth=True)})
        AceTracker(settings).track(without)
    monkeypatch.setenv("ACEHAND_MANO", str(tmp_path / "mano"))
    with pytest.raises(InputError, match="mano"):
        AceTracker(TrackerSettings(own=own))


def test_flags_become_settings(monkeypatch, capsys):
    monkeypatch.delenv("ACEHAND_WEIGHTS", raising=False)

    def settings_of(*words):
        (job,) = parse("", words, JobSettings)
        return job.tracking.own["ace"].with_environment(job.tracker)[0]

    assert settings_of() == AceSettings()
    words = "--weights w --encode-width native --second-opinion --betas b.json --ray-cells centres"
    settings = settings_of(*words.split())
    run_as = InferenceConfig(encode_width=0, ray_cells="centres")
    expected = {"second_opinion": True, "betas": Path("b.json"), "run_as": run_as}
    assert settings == AceSettings(Path("w"), **expected)
    assert settings_of("--encode-width", "672").run_as == InferenceConfig(encode_width=672)
    with pytest.raises(SystemExit) as wrong:
        settings_of("--encode-width", "wide")
    assert wrong.value.code == 2 and "native" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"`weights`.*`tracker=ace`.*mediapipe"):
        settings_of("--weights", "w", "--tracker", "mediapipe")
    monkeypatch.setenv("ACEHAND_WEIGHTS", "mine")
    assert settings_of() == AceSettings(Path("mine"))
    assert settings_of("--tracker", "mediapipe") == AceSettings()


def test_a_python_caller_gets_the_weights_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ACEHAND_WEIGHTS", str(tmp_path / "none"))
    report = run_job([EXAMPLE], JobSettings(tracker="ace", output=tmp_path / "out"))
    (failure,) = report.failures
    assert str(tmp_path / "none") in str(failure.error)
    recording = fake.recording(9)
    with pytest.raises(InputError, match=str(tmp_path / "none")):
        choose.track(recording, "ace")
    with pytest.raises(InputError, match="`weights` is for `tracker=ace`, not mediapipe"):
        choose.track(recording, "mediapipe", weights=tmp_path / "none")


def test_weights_are_told_apart_and_auto_takes_them(weights_folder, tmp_path):
    settings = AceSettings(weights_folder)
    assert resolved_name("auto", {"ace": settings}) == "ace"
    assert resolved_name("auto", {"ace": AceSettings()}) == "mediapipe"
    assert resolved_name("mediapipe", {"ace": settings}) == "mediapipe"
    with pytest.raises(InputError, match="no weights here"):
        resolved_name("auto", {"ace": AceSettings(tmp_path)})
    known = settings.identity()
    assert known["weights"] == content_sha256(weights_folder / "config.json")
    assert known == replace(settings, device="cpu", batch=3).identity()
    assert known != replace(settings, windows="full").identity()
    file = tmp_path / "betas.json"
    file.write_text("{}")
    assert len(replace(settings, betas=file).identity()["betas"]) == 64
    with pytest.raises(InputError, match="gone: no such"):
        AceSettings(tmp_path / "gone").identity()


@pytest.mark.parametrize("weights_folder", ["k"], indirect=True)
def test_what_settings_show_is_refused_before_a_file_of_tensors_is_opened(
    weights_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.delenv("ACEHAND_MANO", raising=False)
    opened = []
    for module, name in ((storage, "safe_open"), (torch, "load"), (hashlib, "file_digest")):
        monkeypatch.setattr(module, name, lambda *a, **_: opened.append(a) or (1 / 0))
    model = ["--tracker", "ace", "--weights", str(weights_folder), "--duration", "0.3", "--json"]
    camera = ["--intrinsics", "500,500,320,240"]

    def refused(run, *more):
        assert run([str(EXAMPLE), *model, *more, "--output", str(tmp_path / "out")]) != 0
        assert opened == []
        return capsys.readouterr().out

    table = lambda words: main(["reconstruct", *words[:-1], f"{words[-1]}.parquet"])  # noqa: E731
    for run in (table, retarget.main):
        assert "variant k)" in refused(run)
        assert "`device=cuda:99`" in refused(run, *camera, "--device=cuda:99")
        assert "`use_depth`" in refused(run, *camera, "--use-depth")
    assert "5 or more" in refused(table, *camera, "--drop-tail", "--duration", "0.1")
    monkeypatch.setattr(windows, "MAX_LATENTS", 2)
    assert "latents" in refused(table, *camera, "--windows", "full")
    monkeypatch.setattr(ace_tracker, "has_mano", lambda: True)
    monkeypatch.setenv("ACEHAND_MANO", str(tmp_path / "mano"))
    assert "mano" in refused(table, *camera)


@pytest.mark.slow
@pytest.mark.parametrize("weights_folder", ["kfree"], indirect=True)
def test_changed_weights_are_noticed_when_resuming(weights_folder, tmp_path, monkeypatch, capsys):
    """Weights that do not state their hashes, changed under the same name."""
    monkeypatch.delenv("ACEHAND_MANO", raising=False)
    weights, output = tmp_path / "weights", tmp_path / "dataset"
    write_repackaged(weights, load_weights(weights_folder))

    def run(*more):
        done = retarget.main(
            [str(EXAMPLE), "--tracker", "ace", "--duration", "0.3", "--encode-width",
             "64", "--precision", "float32", "--no-overlay", "--quiet", "--output", str(output),
             *more]
        )  # fmt: skip
        return done, capsys.readouterr().err

    assert run("--weights", str(weights))[0] == 0
    made = FinishedEpisodes.of(output)
    assert run("--weights", str(weights), "--resume")[0] == 0
    shutil.copytree(weights, tmp_path / "copy")
    assert run("--weights", str(tmp_path / "copy"), "--resume")[0] == 0
    assert FinishedEpisodes.of(output) == made
    flip_bit(weights / "kfree" / "projector" / "model.safetensors", -2)
    done, printed = run("--weights", str(weights), "--resume")
    assert done == 2 and "settings: `ace`" in printed
    assert FinishedEpisodes.of(output) == made
    # Nor does the model that is in memory stand for other weights.
    first = AceSettings(weights, precision="float32")
    loaded = ace_tracker._load(first, first.content())
    flip_bit(weights / "vae" / "model.safetensors", -2)
    assert ace_tracker._load(first, first.content()).weights.sha256 != loaded.weights.sha256


def test_manos_pose_includes_its_mean(golden_folder, monkeypatch):
    monkeypatch.setenv("ACEHAND_MANO", str(golden_folder / "mano_synthetic.npz"))
    hand = load_mano()
    assert loading.has_mano()
    found = run(fake.recording(9), hands=loading.mano_hands.__wrapped__())
    assert found.hand_model == "mano" and not found.left_shapedirs_fixed
    assert_posed(found, hand, atol=1e-5)


def test_betas_are_read_and_belong_to_one_model(tmp_path):
    path = tmp_path / "betas.json"
    rows = {"left": [0.1] * 10, "right": [0.2] * 10}
    path.write_text(json.dumps({"hand_model": "acehand", **rows}), "utf-8")
    np.testing.assert_array_equal(read_betas(path, "acehand"), [[0.1] * 10, [0.2] * 10])
    with pytest.raises(InputError, match="'mano'"):
        read_betas(path, "mano")
    found = run(betas=fake.BETAS)
    write_hand_motion(found, tmp_path / "hands.parquet")
    np.testing.assert_array_equal(read_betas(tmp_path / "hands.parquet", "acehand"), fake.BETAS)
    short = {"hand_model": "mano", "left": [1] * 9, "right": [1] * 10}
    for text in ("[]", "{", json.dumps({"left": 1}), json.dumps(short)):
        path.write_text(text, "utf-8")
        with pytest.raises(SchemaError):
            read_betas(path, "mano")
    with pytest.raises(InputError, match="cannot be read"):
        read_betas(tmp_path / "none.json", "mano")
