#!/usr/bin/env python3
"""mirror = 1: every owner's shards are held by a second node too, and what one node loses the other has."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import Cluster  # noqa: E402
from harness import cases_of, main  # noqa: E402
from moments import LAYOUT, NEEDS, STEPS, as_undisturbed, train  # noqa: E402

PLACEMENTS = ([0, 1], [0, 1, 1], [0, 1, 2], [0, 0, 2])


def placed(placements):
    return cases_of(placements, "{}")


@placed(PLACEMENTS)
def same_bits(placement):
    """The mirrors are what they mirror, and both are what a job without mirrors comes to."""
    with Cluster(max(placement) + 1, mirror=1) as c:
        train(c.ranks("job", LAYOUT, placement, **NEEDS), STEPS)
        assert "mirrors" in c.checksum("job")
        as_undisturbed(c, placement)


if __name__ == "__main__":
    main()
