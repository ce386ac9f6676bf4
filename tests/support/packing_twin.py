"""Packing in plain Python: whole lists, nothing clever."""

from __future__ import annotations

from bisect import bisect_left, insort

from support.orders_twin import permute

WINDOW = 2**15

Piece = tuple[int, int, int]  # document, offset, tokens


def pieces_of(document: int, length: int, seq_length: int, extra: int) -> list[Piece]:
    """A document's pieces of two tokens or more, until its end is in one."""
    pieces, offset, end = [], 0, 0
    while end < length:
        end = min(offset + seq_length + extra, length)
        if end - offset >= 2:
            pieces.append((document, offset, end - offset))
        offset += seq_length
    return pieces


def windows(lengths: list[int], key: int) -> list[list[int]]:
    """The documents of each window, in the order in which they enter it."""
    n = len(lengths)
    order = [permute(n, key, i) for i in range(n)]
    count = -(-n // WINDOW)
    sizes = [n // count + (w < n % count) for w in range(count)]
    return [[order.pop(0) for _ in range(size)] for size in sizes]


def best_fit(pieces: list[Piece], capacity: int, multiple: int = 1) -> list[list[Piece]]:
    """Longest first, each to the sample with the least room, of equal ones the one touched last.

    Sizes are rounded up to a multiple.
    """
    size = {piece: -(-piece[2] // multiple) * multiple for piece in pieces}
    samples: list[list[Piece]] = []
    rooms: list[tuple[int, int, int]] = []  # room, how long ago it was touched, sample
    for time, piece in enumerate(sorted(pieces, key=lambda piece: -size[piece])):
        found = bisect_left(rooms, (size[piece], -len(pieces), 0))
        if found == len(rooms):
            room, number = capacity, len(samples)
            samples.append([])
        else:
            room, _, number = rooms.pop(found)
        samples[number].append(piece)
        insort(rooms, (room - size[piece], -time, number))
    return samples


def pack(
    lengths: list[int],
    seq_length: int,
    extra: int,
    key: int,
    *,
    together: bool,
    multiple: int = 1,
) -> list[list[Piece]]:
    """The pieces of every sample, in the order that is stored."""
    capacity, samples = seq_length + extra, []
    for documents in windows(lengths, key) if lengths else []:
        pieces = [
            piece
            for document in documents
            for piece in pieces_of(document, lengths[document], seq_length, extra)
        ]
        full = [[piece] for piece in pieces if piece[2] == capacity]
        rest = [piece for piece in pieces if piece[2] < capacity]
        place = {document: i for i, document in enumerate(documents)}
        room = capacity // multiple * multiple
        mixed = best_fit(rest, room, multiple) if together else [[piece] for piece in rest]
        samples += [sorted(sample, key=lambda piece: place[piece[0]]) for sample in mixed] + full
    return samples
