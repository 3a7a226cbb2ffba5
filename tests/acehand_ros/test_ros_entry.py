"""The nodes as commands, what they log, and what launch files hand on; without ROS."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import yaml

from acehand_core.errors import AcehandError, InputError
from acehand_core.pipeline.bag_convert import ConvertReport
from acehand_core.pipeline.report import EpisodeReport, Failure, JobReport
from acehand_core.recordings.bags.writer import BagWriter
from acehand_ros import clip_recorder, control, launching, parameters
from acehand_ros.worker import JobLog, JobWorker
from helpers import ROOT
from retarget.robots.robot import load_robot

#: A node that waits for its end, in a process that takes a second to end.
NODE = """
import atexit, sys, time, types
from acehand_ros import entry

def main(argv):
    print("up", flush=True)
    entry.STOP.wait(60)
    return 0

sys.modules["rclpy"] = types.ModuleType("rclpy")
sys.modules["acehand_ros.offline_bag"] = types.ModuleType("acehand_ros.offline_bag")
sys.modules["acehand_ros.offline_bag"].main = main
atexit.register(time.sleep, 1)
sys.exit(entry.offline_bag())
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.few(1)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_ctrl_c_ends_a_node_cleanly_however_often(times: int) -> None:
    command = [sys.executable, "-c", NODE]
    node = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert node.stdout is not None and node.stdout.readline() == "up\n"
    for _ in range(times):
        node.send_signal(signal.SIGINT)
        time.sleep(0.2)
    _, errors = node.communicate(timeout=30)
    assert (node.returncode, errors) == (0, "")


@pytest.mark.parametrize("library", ["numpy", "rclpy"])
def test_without_its_libraries_a_node_says_what_to_source(library: str) -> None:
    code = f"import sys; sys.modules['{library}'] = None\n"
    done = python(code + "from acehand_ros.entry import offline_bag; sys.exit(offline_bag())")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert library in done.stderr and "ROS" in done.stderr


#: Loads launch files, with stand-ins for what ROS brings.
LAUNCH = """
import importlib.util, sys, types

class Made:
    def __init__(self, *entries, **given):
        self.entries, self.given = entries, given

for name in ("launch", "launch.actions", "launch.event_handlers",
             "launch.launch_description_sources", "launch_ros", "launch_ros.actions",
             "launch_ros.parameter_descriptions"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__getattr__ = lambda _: Made
if not importlib.util.find_spec("yaml"):
    sys.modules["yaml"] = types.ModuleType("yaml")
for file in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("file", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    *arguments, action = module.generate_launch_description().entries[0]
    try:
        print(len(arguments), *(() if arguments else action.given["function"](None)))
    except RuntimeError as error:
        print(error)
"""


def test_launch_files_in_another_python_say_what_to_export() -> None:
    """A Python without site-packages, then with those that the sentence names."""
    files = sorted(map(str, (ROOT / "launch").glob("*.launch.py")))
    bare = {"PYTHONPATH": str(ROOT), "PATH": str(Path(sys.executable).parent)}

    def load(environment: dict[str, str]) -> list[str]:
        command = [sys.executable, "-S", "-c", LAUNCH, *files]
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    said = load(bare)
    assert len(said) == len(files) == 4
    for line in said:
        assert f"{sys.executable}, lacks" in line and "No module named 'numpy'" in line
        export = line[line.index("export ") :]
        assert export in (ROOT / "docs/ros2.md").read_text("utf-8")
    for file in files:
        shown = [sys.executable, "-S", "-c", LAUNCH, file, "--show-args"]
        done = subprocess.run(shown, env=bare, cwd="/", capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.strip() == line
    shell = ["/bin/bash", "-c", f"{export}; echo $PYTHONPATH"]
    path = subprocess.run(shell, env=bare, capture_output=True, text=True, check=True).stdout
    assert all(int(count) > 10 for count in load(bare | {"PYTHONPATH": path.strip()}))


def test_help_lists_the_parameters() -> None:
    code = "import sys; from acehand_ros.entry import offline_bag; sys.exit(offline_bag())"
    done = python(code, "--help")
    assert done.returncode == 0 and done.stdout.startswith(
        "usage: ros2 run acehand_ros offline_bag"
    )
    for leaf in parameters.OFFLINE_BAG:
        assert f"  {leaf.parameter}: {leaf.setting.help}" in done.stdout


def test_an_unknown_robot_is_refused_when_it_is_set() -> None:
    parameters.check(parameters.OFFLINE_BAG, {"robot": "inspire"})
    with pytest.raises(AcehandError, match="inspirre"):
        parameters.check(parameters.OFFLINE_BAG, {"robot": "inspirre"})


def test_losses_and_reasons_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acehand_ros.worker._PROGRESS_S", 0.0)
    failure = Failure("bag", InputError("bag: choose one with `image_topic`."))
    damage, used = "a.mcap: cut off at byte 9; `quality=fast`", "depth of /d is used; `keep_depth`"
    lens = "distances by an assumed lens (+-35%)"
    json = {"notes": ["hands are assumed: `hand_length=0.19`", damage]}
    episode = EpisodeReport("bag", 0, "pass", (lens,), json)
    job = JobReport("data", 1.0, 0.0, (episode,), (failure,))
    report = ConvertReport(job, None, {}, {"/a": 3}, (used, damage), (damage,))
    log, worker, seen = mock.Mock(), JobWorker(), []
    job_log = JobLog(log, worker)

    def work(progress, cancel):
        for done in (1, 2):
            progress("track", done, 4)
            time.sleep(0.01)
            seen.append(job_log.update())
        return report

    worker.start(work)
    assert worker.join(20)
    assert job_log.update() and not job_log.update() and seen == [False, False]
    assert [(name, *words) for name, words, _ in log.method_calls] == [
        ("info", "track"),
        ("info", "track: 50 %"),
        ("info", "done: 1 episode (pass), dataset data, 1.0 s"),
        ("warning", lens),
        ("info", "hands are assumed: hand_length:=0.19"),
        ("warning", "a.mcap: cut off at byte 9; quality:=fast"),
        ("info", "depth of /d is used; keep_depth:=true"),
        ("warning", "unusable messages: /a 3"),
        ("error", "failed: bag: choose one with image_topic:=."),
    ]


def test_a_recorder_names_the_image_topics_that_there_are() -> None:
    images = {"/b": [clip_recorder.COMPRESSED], "/a": [clip_recorder.IMAGE]}
    graph = images | {"/c": ["std_msgs/msg/String"]}
    assert clip_recorder.image_topics(graph, "/camera") == "/a, /b"
    assert clip_recorder.image_topics(graph, "/a") == "/b"
    assert clip_recorder.image_topics({}, "/a") == "none"


def test_controllers_are_found_in_any_namespace() -> None:
    given = control.controller_parameters(load_robot("inspire"), "both", "action", 100, 0.2, 0.05)
    names = ["controller_manager", "left_hand", "right_hand"]
    assert list(given) == [f"/**/{name}" for name in names]


@pytest.mark.parametrize(
    ("around", "own", "full"),
    [
        ("", "", ""), ("", "left", "/left"), ("/cell", "", "/cell"),
        ("/cell", "left", "/cell/left"), ("/cell", "/left", "/left"), ("/", "left", "/left"),
    ],
)  # fmt: skip
def test_a_namespace_goes_into_the_group_around_it(around: str, own: str, full: str) -> None:
    given = {"namespace": own} | ({"ros_namespace": around} if around else {})
    assert launching.full_namespace(given) == full


def test_a_bag_names_the_distribution_it_was_recorded_on(tmp_path: Path) -> None:
    for recorded_on, named in (("humble", "humble"), ("", "rosbags"), ("a: b", "rosbags")):
        path = tmp_path / f"bag_{len(recorded_on)}"
        writer = BagWriter(path, recorded_on=recorded_on)
        writer.write_raw("/a", "std_msgs/msg/String", 1, b"\0\1\0\0\1\0\0\0\0")
        writer.close()
        metadata = yaml.safe_load((path / "metadata.yaml").read_text("utf-8"))
        assert metadata["rosbag2_bagfile_information"]["ros_distro"] == named


def test_colcon_runs_the_tests_on_ros_alone() -> None:
    words = ("-q", "--collect-only", "--junit-prefix=acehand_ros")
    done = python("import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))", *words)
    files = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert files and all(file.startswith("tests/ros/") for file in files), done.stdout[-2000:]
