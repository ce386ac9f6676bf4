"""The stateless order in plain Python: integers of any size, whole arrays, nothing clever."""

from __future__ import annotations

from fractions import Fraction

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15


def scramble(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def mix(*values: int) -> int:
    state = scramble((len(values) + GOLDEN) % WORD)
    for value in values:
        state = scramble(((state ^ value) + GOLDEN) % WORD)
    return state


def hash_half(half: int, key: int, bits: int) -> int:
    x = (half ^ key) * 0xFF51AFD7ED558CCD % WORD
    x = (x ^ (x >> 32)) * 0xC4CEB9FE1A85EC53 % WORD
    return x >> (64 - bits)


def permute(size: int, key: int, i: int) -> int:
    bits = (size - 1).bit_length()
    high_bits = bits // 2
    low_bits = bits - high_bits
    rounds = 24 if bits < 12 else 6
    while True:
        high, low = divmod(i, 2**low_bits)
        for r in range(rounds):
            round_key = scramble((key + (r + 1) * GOLDEN) % WORD)
            if r % 2 == 0:
                low ^= hash_half(high, round_key, low_bits)
            else:
                high ^= hash_half(low, round_key, high_bits)
        i = high * 2**low_bits + low
        if i < size:
            return i


def to_integers(weights: list[float]) -> list[int]:
    """The weights times the largest power of two that keeps n times the largest below 2^62."""
    exact = [Fraction(weight) for weight in weights]
    bits = 62 - (len(weights) - 1).bit_length()
    scale = Fraction(1)
    while max(exact) * scale >= 2**bits:
        scale /= 2
    while max(exact) * scale * 2 < 2**bits:
        scale *= 2
    return [int(weight * scale) for weight in exact]


def blend(weights: list[float], samples: int) -> list[tuple[int, int]]:
    """(dataset, number in it) of each sample, by dealing the samples down a Huffman tree."""
    forest: list[tuple[int, int, object]] = [
        (weight, i, i) for i, weight in enumerate(to_integers(weights))
    ]
    for order in range(len(weights) - 1):
        forest.sort(key=lambda tree: tree[:2])
        right, left, *forest = forest
        total = left[0] + right[0]
        share = left[0] * WORD // total
        forest.append((total, len(weights) + 1 + order, (share, left[2], right[2])))
    result: list[tuple[int, int]] = [(-1, -1)] * samples

    def deal(tree: object, numbers: list[int]) -> None:
        if not isinstance(tree, tuple):
            for count, number in enumerate(numbers):
                result[number] = (tree, count)
            return
        share, left, right = tree
        given: tuple[list[int], list[int]] = ([], [])
        for k, number in enumerate(numbers):
            goes_left = (k * share + share + WORD // 2) // WORD > len(given[0])
            given[0 if goes_left else 1].append(number)
        deal(left, given[0])
        deal(right, given[1])

    deal(forest[0][2], list(range(samples)))
    return result


def epoch(lengths: list[int], seq_length: int, extra: int, key: int) -> list[list[tuple[int, int]]]:
    """Samples of one epoch, each a list of (document, position of the token in it)."""
    n = len(lengths)
    stream = [
        (document, position)
        for document in (permute(n, key, i) for i in range(n))
        for position in range(lengths[document])
    ]
    count = max(len(stream) - extra, 0) // seq_length
    return [stream[j * seq_length : (j + 1) * seq_length + extra] for j in range(count)]


def epoch_of_blocks(
    lengths: list[int],
    seq_length: int,
    extra: int,
    key: tuple[int, ...],
    *,
    block_tokens: int,
    window_blocks: int,
) -> list[list[tuple[int, int]]]:
    """Samples of one epoch in the order of blocks, as they are taken.

    ``key`` is what every key of the epoch begins with: seed, fingerprint, range and epoch.
    """
    grouped: dict[int, list[int]] = {}
    begin = 0
    for document, length in enumerate(lengths):
        grouped.setdefault(begin // block_tokens, []).append(document)
        begin += length
    blocks = list(grouped.values())
    n = len(blocks)
    order = [blocks[permute(n, mix(*key, 4), i)] for i in range(n)]
    windows = -(-n // window_blocks)
    stream: list[tuple[int, int]] = []
    edges = [0]
    for w in range(windows):
        inside = order[w * n // windows : (w + 1) * n // windows]
        documents = [document for block in inside for document in block]
        for i in range(len(documents)):
            document = documents[permute(len(documents), mix(*key, w, 5), i)]
            stream += [(document, position) for position in range(lengths[document])]
        edges.append(len(stream))
    count = max(len(stream) - extra, 0) // seq_length
    cut = [stream[j * seq_length : (j + 1) * seq_length + extra] for j in range(count)]
    taken: list[list[tuple[int, int]]] = []
    for w in range(windows):
        begun = [j for j in range(count) if edges[w] <= j * seq_length < edges[w + 1]]
        key_of_samples = mix(*key, w, 6)
        taken += [cut[begun[permute(len(begun), key_of_samples, i)]] for i in range(len(begun))]
    return taken


def epoch_of_pairs(begin: int, end: int, key: tuple[int, ...]) -> list[int]:
    """The sequence of each sample of an epoch of pairs; ``key`` as of ``epoch_of_blocks``."""
    pairs = [(n, n + 1) for n in range(0, end, 2) if n >= begin and n + 1 < end]
    order = [pairs[permute(len(pairs), mix(*key, 7), i)] for i in range(len(pairs))]
    return [sequence for pair in order for sequence in pair]
