"""Every launch line of the documentation, with all that it includes and starts later."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ros_process import ROOT

LINE = re.compile(r"ros2 launch acehand_ros (\w+)\.launch\.py ?([^`\n]*)")
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "ros2.md", *sorted((ROOT / "launch").glob("*.py")))
FOUND = {match[0]: match for d in DOCUMENTS for match in LINE.finditer(d.read_text("utf-8"))}
MORE = ("ros2 launch acehand_ros offline_bag.launch.py bag:=B output_dir:=O play:=true",)


def documented() -> Iterator[tuple[str, dict[str, str]]]:
    for line in (*FOUND, *MORE):
        name, rest = LINE.match(line).groups()
        given = [one.partition(":=") for one in shlex.split(rest, comments=True)]
        if "--show-args" not in rest:
            yield name, {key: value for key, _, value in given}


class Started:
    """The nodes that a launch file starts, at once and when others have ended well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, around: str = "") -> None:
        from launch_ros.actions import LifecycleNode, Node

        from launch import LaunchContext

        self.nodes: list[tuple[str, str]] = []
        self.context = LaunchContext()
        self.handlers: list[Any] = []
        self.around = around
        monkeypatch.setattr(self.context, "register_event_handler", self._register)
        monkeypatch.setattr(self.context, "unregister_event_handler", lambda _: None)
        for kind in (Node, LifecycleNode):
            monkeypatch.setattr(kind, "execute", lambda node, _: self._start(node))
        monkeypatch.setattr("acehand_ros.launching.share", lambda *parts: ROOT.joinpath(*parts))
        if around:
            self.context.launch_configurations["ros_namespace"] = around

    def _register(self, handler: Any, **_: Any) -> None:
        self.handlers.append(handler)

    def _start(self, node: Any) -> None:
        node._perform_substitutions(self.context)
        self.nodes.append((node.node_executable, node.expanded_node_namespace))

    def visit(self, entity: Any) -> None:
        for one in entity.visit(self.context) or ():
            self.visit(one)

    def run(self, name: str, given: dict[str, str]) -> None:
        """Start a launch file, then what is to follow once each process has ended well."""
        from launch.actions import IncludeLaunchDescription
        from launch.launch_description_sources import PythonLaunchDescriptionSource

        path = str(ROOT / "launch" / f"{name}.launch.py")
        source = PythonLaunchDescriptionSource(path)
        self.visit(IncludeLaunchDescription(source, launch_arguments=given.items()))
        if self.around:  # after the group that held the include
            self.context.launch_configurations.clear()
        self.ended()

    def ended(self) -> None:
        from types import SimpleNamespace

        handlers, self.handlers = self.handlers, []
        for handler in handlers:
            then = handler._OnActionEventBase__on_event
            for entity in then(SimpleNamespace(returncode=0), self.context) or ():
                if type(entity).__name__ != "EmitEvent":
                    self.visit(entity)


@pytest.mark.parametrize(("name", "given"), list(documented()))
def test_it_starts_and_what_follows_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, given: dict[str, str]
) -> None:
    started = Started(monkeypatch)
    started.run(name, given)
    wanted = {"offline_bag": "offline_bag", "clip": "clip_recorder", "replay": "trajectory_player"}
    names = [name for name, _ in started.nodes]
    assert wanted.get(name, "ros2_control_node") in names
    if given.get("play") == "true" or (name.startswith("inspire") and "player" not in given):
        assert "trajectory_player" in names


@pytest.mark.parametrize("around", ["", "/cell"])
def test_all_nodes_of_the_controllers_are_in_the_namespace(
    monkeypatch: pytest.MonkeyPatch, around: str
) -> None:
    started = Started(monkeypatch, around)
    started.run("inspire_ros2_control", {"source": "a", "namespace": "left_robot"})
    assert len(started.nodes) == 4
    assert {namespace for _, namespace in started.nodes} == {f"{around}/left_robot"}
