"""Counter-based randomness: every draw is a pure function of (seed, purpose, epoch, ..., sample).

Nothing here has state, so a draw is the same for any batch size, order, worker count or restart, and a
checkpoint needs no generator. The mixing is two rounds of a 32-bit finaliser (multipliers of `lowbias32`) keyed
twice per sample; it is fast enough that drawing costs less than reading the images.
"""

import hashlib

import numpy as np

_GOLDEN = np.uint32(0x9E3779B9)
_ROWS = 256  # rows per block: a block of 345 columns stays inside the L2 cache


def key(seed: int, purpose: str, *counters: int) -> np.uint64:
    """A 64-bit key for one purpose: `key(seed, "residual", epoch)`. Different words share draws as good as never."""
    text = ":".join([str(seed), purpose, *map(str, counters)])
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), np.uint64)[0]


def _mix64(x: np.ndarray) -> np.ndarray:
    """The splitmix64 finaliser, on uint64 (wraps round)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def random_bits(stream: np.uint64, samples: np.ndarray, width: int) -> np.ndarray:
    """32 random bits for each of `width` columns of each sample number, uint32 [n, width].

    A sample's row does not depend on the others, and a wider draw begins with the narrower one.
    """
    with np.errstate(over="ignore"):
        row_keys = _mix64(np.asarray(samples).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + stream)
        low, high = row_keys.astype(np.uint32)[:, None], (row_keys >> np.uint64(32)).astype(np.uint32)[:, None]
        columns = np.arange(1, width + 1, dtype=np.uint32) * _GOLDEN
        bits = np.empty((len(row_keys), width), np.uint32)
        for start in range(0, len(bits), _ROWS):
            block = bits[start : start + _ROWS]
            np.add(low[start : start + _ROWS], columns, out=block)
            block ^= block >> np.uint32(16)
            block *= np.uint32(0x7FEB352D)
            block ^= high[start : start + _ROWS]
            block ^= block >> np.uint32(15)
            block *= np.uint32(0x846CA68B)
            block ^= block >> np.uint32(16)
    return bits


def uniforms(stream: np.uint64, samples: np.ndarray, width: int) -> np.ndarray:
    """Uniform numbers in [0, 1), float32 [n, width]; 24 bits each, so 1.0 is never reached."""
    return (random_bits(stream, samples, width) >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)


def permutation(stream: np.uint64, n: int) -> np.ndarray:
    """A random order of 0..n-1, int64 [n]."""
    return np.argsort(random_bits(stream, np.arange(n), 1)[:, 0], kind="stable")


def torch_seed(stream: np.uint64) -> int:
    """A seed for code that insists on a torch generator (initialisation, dropout)."""
    return int(stream >> np.uint64(1))
