"""Write motions as a dataset by lerobot itself; runs in lerobot's own Python environment.

    $ACEHAND_LEROBOT_PYTHON benchmarks/policy/act_dataset.py motions.npz FOLDER

``motions.npz``: ``seen`` (E, T, 18) and ``commanded`` (E, T, 15), as learn.py's ``steps``.
"""

import sys

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

with np.load(sys.argv[1]) as file:
    seen, commanded = (file[name].astype(np.float32) for name in ("seen", "commanded"))
columns = {
    "observation.state": seen[:, :-1, :15],
    "observation.environment_state": seen[:, :-1, 15:],
    "action": commanded[:, 1:],
}
features = {
    name: {"dtype": "float32", "shape": values.shape[2:], "names": None}
    for name, values in columns.items()
}
dataset = LeRobotDataset.create(
    "acehand/lift", fps=20, features=features, root=sys.argv[2], use_videos=False
)
for episode in range(len(seen)):
    for step in range(seen.shape[1] - 1):
        frame = {name: values[episode, step] for name, values in columns.items()}
        dataset.add_frame({**frame, "task": "lift the cube"})
    dataset.save_episode()
dataset.finalize()
