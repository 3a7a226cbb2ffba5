"""What several tests share."""

from pathlib import Path

#: The checkout.
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
