"""What a converted bag was made of, kept in its metadata, so that a resumed conversion knows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from acehand_core.bags.bag import Bag
from acehand_core.errors import InputError, OutputError

#: Name of the custom data (rosbag2) of a bag that was made of a dataset.
BAG_ORIGIN = "acehand_origin"


@dataclass(frozen=True, slots=True)
class BagOrigin:
    """What a converted bag was made from.

    ``source_sha256`` is the content of the bag that was converted, ``settings`` are named like the
    flags, and ``episodes`` has the content of each of the dataset's episodes, by number.
    """

    source_sha256: str
    settings: Mapping[str, Any]
    episodes: Mapping[int, str]

    @classmethod
    def of_bag(cls, path: Path) -> tuple[BagOrigin, dict[str, int]]:
        """Return the origin that a bag records, and its messages by topic.

        Raises:
            OutputError: it is not a bag, or not one that was made of a dataset.
        """
        try:
            with Bag(path) as bag:
                content, counts = json.loads(bag.custom_data[BAG_ORIGIN]), bag.counts
            episodes = {int(number): str(sha256) for number, sha256 in content["episodes"].items()}
            return cls(content["source_sha256"], content["settings"], episodes), counts
        except (InputError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise OutputError(
                f"{path} exists and is not a bag that --resume could complete: it does not record "
                "which dataset it was made of. Move it away, or choose another name."
            ) from error

    def custom_data(self) -> dict[str, str]:
        """Return the custom data that a bag keeps of this."""
        return {BAG_ORIGIN: json.dumps(asdict(self), sort_keys=True)}

    def check_fits(self, path: Path, wanted: BagOrigin) -> None:
        """Refuse a bag at ``path`` that could not be completed to the wanted one.

        One that only lacks episodes fits.

        Raises:
            OutputError: says what differs.
        """
        differences = [
            f"--{name} was {self.settings.get(name)!r}, not {value!r}"
            for name, value in wanted.settings.items()
            if self.settings.get(name) != value
        ]
        if self.source_sha256 != wanted.source_sha256:
            differences.append("it was made from another bag")

        others = [
            number for number, sha256 in self.episodes.items()
            if wanted.episodes.get(number) != sha256
        ]  # fmt: skip
        if others:
            numbers = ", ".join(map(str, others))
            differences.append(f"the dataset has no such episode {numbers} of this bag")

        if differences:
            raise OutputError(
                f"{path} exists and is not the bag of this conversion: {'; '.join(differences)}. "
                "Resume with what it was made of, move it away, or choose another name."
            )
