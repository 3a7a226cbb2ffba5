"""Linear algebra of many small solves runs in one thread, and other code gets its threads back."""

import subprocess
import sys

import scipy.linalg  # noqa: F401  # has a BLAS of its own
import threadpoolctl

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
    "acehand_core.camera.recorded:recorded_rotations": 3,
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
