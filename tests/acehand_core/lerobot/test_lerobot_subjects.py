"""Who is recorded is kept with every episode."""

import json

from acehand_core.lerobot.dataset import read_provenance
from helpers.commands import Acehand, hands_file
from helpers.commands import GripperRun as Run


def test_the_main_job_keeps_the_subject(tmp_path, capsys):
    root, joints = tmp_path / "out", hands_file(tmp_path / "joints.npz")
    refused = Run(capsys, joints, "--output", root, "--subject", " ")
    assert refused.code == 2 and "--subject is empty" in refused.err and not root.exists()
    dry = Run(capsys, joints, "--output", root, "--subject", "s01", "--dry-run")
    run = Run(capsys, joints, "--output", root, "--subject", "s01")
    assert run.code == 0 and run.json["episodes"][0]["subject"] == "s01"
    assert dry.json["episodes"][0]["subject"] == "s01"
    assert Run(capsys, joints, "--output", root, "--append").code == 0

    reports = [json.loads(path.read_text()) for path in sorted(root.glob("acehand/*/report.json"))]
    assert reports[0]["subject"] == "s01" and "subject" not in reports[1]
    settings = [record["job"]["settings"] for record in read_provenance(root)]
    assert settings[0]["subject"] == "s01" and "subject" not in settings[1]

    # Another subject is another episode; an interrupted run is resumed as it was.
    again = Run(capsys, joints, "--output", root, "--subject", "s01", "--resume")
    assert again.code == 0 and again.json["skipped"]
    other = Run(capsys, joints, "--output", root, "--subject", "s02", "--resume")
    assert other.code == 2 and "--subject is 's02', not " in other.err

    info = Acehand(capsys, "dataset", "info", root)
    assert info.json["subjects"] == {"s01": 1, "unknown": 1} and "subject: 1 s01" in info.err
    (tmp_path / "rules.yaml").write_text("subject: [s01]")
    rules = ["--rules", tmp_path / "rules.yaml", "--dry-run"]
    assert Acehand(capsys, "dataset", "filter", root, *rules).json["removed"][0]["episode"] == 1

    # A card tells how many, not who.
    card = ("dataset", "info", root, "--card", root / "README.md")
    assert Acehand(capsys, *card).code == 0
    text = (root / "README.md").read_text()
    assert "1 subject and others" in text and "s01" not in text
    assert Acehand(capsys, "dataset", "filter", root, 1).code == 0
    assert Acehand(capsys, *card, "--overwrite").code == 0
    text = (root / "README.md").read_text()
    assert "1 subject," in text and "- robot: `panda_gripper`" in text
    assert "robot model panda_gripper" in text and "s01" not in text
