"""A job in a thread: progress, cancelling, how it ends. And the parameters' tables."""

import threading

import pytest

from acehand_core.errors import InputError, Interrupted
from acehand_ros import parameters
from acehand_ros.parameters import CLIP_RECORDER, OFFLINE_BAG, PLAYER
from acehand_ros.worker import JobWorker

TABLES = {"offline_bag": OFFLINE_BAG, "clip_recorder": CLIP_RECORDER, "trajectory_player": PLAYER}


def test_progress_and_result() -> None:
    worker, step = JobWorker(), threading.Event()
    reached = threading.Event()

    def work(progress, cancel):
        progress("track", 3, 10)
        progress("a remark", 0, 0)
        reached.set()
        assert step.wait(5)
        return 42

    assert worker.status.state == "idle" and not worker.cancel()
    worker.start(work)
    assert reached.wait(5)
    status = worker.status
    assert (status.state, status.stage, status.done, status.total) == ("running", "track", 3, 10)
    assert worker.take_remarks() == ["a remark"] and worker.take_remarks() == []
    with pytest.raises(InputError, match="already running"):
        worker.start(work)
    step.set()
    assert worker.join(5)
    assert (worker.status.state, worker.status.report) == ("done", 42)


def test_cancel_keeps_what_was_finished() -> None:
    worker = JobWorker()

    def work(progress, cancel):
        assert cancel.wait(5)
        raise Interrupted("two episodes")

    worker.start(work)
    assert worker.cancel()
    assert worker.join(5)
    assert (worker.status.state, worker.status.report) == ("cancelled", "two episodes")
    worker.start(lambda progress, cancel: cancel.is_set())  # the next job is not cancelled
    worker.join(5)
    assert worker.status.report is False


@pytest.mark.parametrize(
    ("error", "message"),
    [(InputError("no such bag"), "no such bag"), (ZeroDivisionError("x"), "ZeroDivisionError: x")],
)
def test_a_failure_is_told(error: Exception, message: str) -> None:
    def work(progress, cancel):
        raise error

    worker = JobWorker()
    worker.start(work)
    worker.join(5)
    assert (worker.status.state, worker.status.message) == ("failed", message)
    assert worker.status.error is error


@pytest.mark.parametrize("name", TABLES)
def test_tables_describe_every_parameter_once(name: str) -> None:
    table = TABLES[name]
    names = [leaf.parameter for leaf in table]
    assert len(set(names)) == len(names)
    parameters.check(table, {leaf.parameter: leaf.default for leaf in table})
    for leaf in table:
        assert len(leaf.setting.help) > 10, leaf.parameter
        numeric = type(leaf.default) in (int, float)
        assert numeric == (leaf.setting.low is not None and leaf.setting.high is not None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 20.0}, r"rate:=20; valid: 0\.01 to 10\."),
        ({"rate": "fast"}, "rate: 'fast' is not of type float"),
        ({"stamps": "recordd"}, "recordd.*Did you mean 'recorded'"),
        ({"output": "goals"}, "output:='goals'; valid: action"),
        ({"sorce": "x"}, "'sorce' is no parameter.*Did you mean 'source'"),
        ({"loop": 1}, "loop: 1 is not of type bool"),
        ({"episode": -1}, "episode:=-1; valid: 0 to"),
    ],
)
def test_bad_values_are_refused_with_what_is_valid(values: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parameters.check(PLAYER, values)
