"""What each rank has to do in a step: the same on all ranks."""
import random

LONGEST, MEAN = 2048, 300


def counts(step, world, uneven):
    """Micro-batches of each rank."""
    chance = random.Random(7 * step)
    return [chance.randint(2, 6) if uneven else 4 for _ in range(world)]


def tokens(step, world, uneven):
    """Tokens of each micro-batch of each rank: log-normal, as answers in fine-tuning are."""
    chance = random.Random(1009 * step)
    return [[max(8, min(LONGEST, int(chance.lognormvariate(0, 1) * MEAN / 1.65))) for _ in range(n)]
            for n in counts(step, world, uneven)]
