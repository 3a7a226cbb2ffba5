"""Threads: of linear algebra, of work in parallel, and of work in the background."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import scipy.linalg  # noqa: F401  # has a BLAS of its own
import threadpoolctl

from acehand_core import processes
from acehand_core.processes import one_blas_thread

CALLED = """
import contextlib, pkgutil, sys
import scipy.linalg, threadpoolctl

def threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info()
            if pool["user_api"] == "blas"}

class Argument:
    def __getattr__(self, name):
        seen.append(threads())
        raise LookupError

functions = {place: pkgutil.resolve_name(place) for place in sys.argv[1:]}
threadpoolctl.threadpool_limits(2, "blas")
for place, function in functions.items():
    seen = []
    with contextlib.suppress(LookupError):
        function(*[Argument()] * ARGUMENTS[place])
    print(place, seen, threads())
"""
ARGUMENTS = {
    "acehand_core.trackers.mediapipe.tracker:MediaPipeTracker.track": 2,
    "acehand_core.camera.turns:recorded_rotations": 3,
    "acehand_core.camera.focal_length:estimate": 1,
    "acehand_core.hand.mapping:fit_to_joints": 3,
    "retarget.retargeting:retarget_motion": 2,
    "retarget.retargeting:calibrate_motion": 2,
    "retarget.solve.arm_attachment:attach_arms": 3,
}


def blas_threads() -> set[int]:
    pools = threadpoolctl.threadpool_info()
    return {pool["num_threads"] for pool in pools if pool["user_api"] == "blas"}


def test_public_functions_solve_in_one_thread():
    command = [sys.executable, "-c", f"ARGUMENTS = {ARGUMENTS}\n{CALLED}", *ARGUMENTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wanted = [f"{place} [{{1}}] {{2}}" for place in ARGUMENTS]
    assert done.stdout.splitlines() == wanted, done.stderr


def test_threads_come_back_once_the_outermost_has_ended():
    with threadpoolctl.threadpool_limits(2, "blas"):
        with one_blas_thread():
            with one_blas_thread():
                pass
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def test_an_error_ends_the_other_threads():
    started = threading.Event()

    def work(item: int, stop: threading.Event) -> int:
        if item == 0:
            assert started.wait(10)
            raise ValueError("the first")
        started.set()
        assert stop.wait(10)
        raise RuntimeError("stopped")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACEHAND_THREADS", "2")
        with pytest.raises(ValueError, match="the first"):
            processes.in_threads(work, [0, 1, 2, 3])
    assert processes.in_threads(lambda item, stop: item * item, [3, 1, 2]) == [9, 1, 4]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has a priority per thread")
def test_a_background_thread_waits_for_others_and_its_own_threads_too():
    def priorities() -> list[int]:
        processes.in_background()
        with ThreadPoolExecutor(1) as pool:
            child = pool.submit(threading.get_native_id)
            ids = [threading.get_native_id(), child.result()]
            return [os.getpriority(os.PRIO_PROCESS, one) for one in ids]

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(priorities).result() == [10, 10]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
