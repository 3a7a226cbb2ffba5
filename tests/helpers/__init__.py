"""What several tests share."""

import os
from pathlib import Path

#: The checkout, and small data that it keeps for tests.
ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
EXAMPLES = ROOT / "examples"
#: Whether slow tests run too (make test-all).
SLOW = bool(os.environ.get("ACEHAND_SLOW"))
