"""What a player publishes, kept, and waiting for what its thread does."""

from __future__ import annotations

import time

from acehand_core.recordings.bags.messages import PlainMessage


class Collected:
    """An outlet that keeps what it is given; it fails at topics that end with ``fail_on``."""

    def __init__(self, fail_on: str = "") -> None:
        self.all: list[tuple[PlainMessage, int | None]] = []
        self.fail_on = fail_on

    def prepare(self, messages) -> None:
        assert {m.topic for m in messages} >= {f"/{s}_hand/joint_states" for s in ("left", "right")}

    def publish(self, messages, stamp_ns=None) -> None:
        for message in messages:
            if self.fail_on and message.topic.endswith(self.fail_on):
                raise OSError("the network is gone")
            self.all.append((message, stamp_ns))

    def of(self, topic: str) -> list[PlainMessage]:
        return [message for message, _ in self.all if message.topic == topic]


def wait(condition, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)
