"""The gradients that actor.c pushes."""

MASK = (1 << 64) - 1


def mix(x):
    x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & MASK
    x = ((x ^ x >> 27) * 0x94d049bb133111eb) & MASK
    return x ^ x >> 31


def noise(seed, step, rank, micro_batch, group_index, first, n, scale):
    key = seed
    for part in (step, rank, micro_batch, group_index):
        key = (mix(key) + part) & MASK
    key = mix(key)
    return [((mix((key + i) & MASK) >> 40) - (1 << 23)) / (1 << 23) * scale for i in range(first, first + n)]
