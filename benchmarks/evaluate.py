"""Time the evaluation on segments of 81 frames with two hands each.

The peer follows the protocol literally, hand by hand (``evaluation_reference.py``): it scores one
of the segments in the same run, and both must give the same numbers.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks import provenance
from benchmarks.evaluation_reference import evaluate, random_pair


def main() -> int:
    """Run the benchmark; exit code 1 where the twin disagrees."""
    run = provenance.start(__file__)
    from acehand_core.ace.evaluation.protocol import HandLibrary, Protocol
    from acehand_core.ace.evaluation.segment import score_segment
    from acehand_core.ace.evaluation.summary import summarise
    from acehand_core.hand.capsule import CapsuleHand

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=40)
    provenance.add_output(parser)
    arguments = parser.parse_args()
    paper, library = Protocol(), HandLibrary()
    pairs = [random_pair(seed, frames=81) for seed in range(arguments.segments)]

    def score(some):
        scores = [
            score_segment(f"{k}", guess, truth, library, paper)
            for k, (guess, truth) in enumerate(some)
        ]
        return summarise(scores, paper, {"name": "benchmark"}, "acehand")

    score(pairs[:1])
    began = time.perf_counter()
    score(pairs)
    seconds = time.perf_counter() - began
    alone = []
    for _ in range(5):
        began = time.perf_counter()
        one = score(pairs[:1])
        alone.append(time.perf_counter() - began)
    began = time.perf_counter()
    twin, counts = evaluate(pairs[:1], CapsuleHand())
    slow = time.perf_counter() - began
    same = counts == one["counts"] and all(
        value is None or abs(value - one["metrics"][name]) <= 1e-5 for name, value in twin.items()
    )
    result = {
        "segments": arguments.segments,
        "frames_per_segment": 81,
        "mesh_vertices": CapsuleHand().rest_vertices("left", pairs[0][1].betas[0]).shape[0],
        "seconds": round(seconds, 3),
        "segments_per_second": round(arguments.segments / seconds, 2),
        "twin_seconds_per_segment": round(slow, 2),
        "ratio_to_twin": round(slow / sorted(alone)[2], 1),
        "same_numbers": same,
    }
    provenance.publish(run, result, arguments.output)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
