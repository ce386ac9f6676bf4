"""The native core. Internal: the public API is ``tokpack``.

Arrays returned are views of scratch memory that is reused by the next call on the same object only
when nobody holds the view any more, so a view never changes under its holder.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer, Unpack

NormalForm = Literal["", "NFC", "NFD", "NFKC", "NFKD"]
# kind of a normalizer, what it takes, what it gives
NormalizerSteps = Sequence[tuple[str, bytes, bytes]]
Level = Literal["auto", "scalar", "avx2", "avx512", "neon"]

def watch_bus_errors() -> None:
    """Let this process name the mapped file that was cut off, where a read of it ends the process.

    It is called when the module is loaded, when a dataset is mapped, and in torch's workers, which
    have another handler by then. SIGBUS then goes to the handler of before.
    """

def simd_levels() -> list[str]:
    """Instruction sets usable on this machine, best last; always starts with ``scalar``."""

class Extracted:
    data: npt.NDArray[np.uint8]  # text of all documents; valid UTF-8
    spans: npt.NDArray[np.int64]  # [n, 2] begin, end in data; an empty span for a slow record
    lines: npt.NDArray[np.int64]  # [n] 0-based line of document i within the block
    slow: npt.NDArray[np.int64]  # [k, 3] document index, begin and end of the line in the block
    # [n, kept, 2] begin and end in the block of the JSON text of each kept key's value; empty for
    # none, and in a slow record
    values: npt.NDArray[np.int64]
    line_count: int  # lines in the block, blank ones and an unterminated last one included

class JsonLines:
    """Extract the string under one top-level key from JSON lines (lines end at \\n alone).

    A line that is only JSON whitespace is no record. A record is *slow*, left to another parser,
    unless it is a well-formed object (RFC 8259) of valid UTF-8, nested no deeper than 64, that has
    the key once, unescaped, with a string without lone surrogates as its value. ``kept`` are other
    top-level keys, or the same one, of whose values the places are given. Without a key each
    well-formed record is read, and its text is empty.
    """

    def __init__(
        self, key: str | None, level: Level = "auto", kept: Sequence[str] = ()
    ) -> None: ...
    def extract(self, block: Buffer) -> Extracted: ...

def json_column(
    data: Buffer, spans: npt.NDArray[np.int64], level: Level = "auto"
) -> tuple[str, int, npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Read JSON texts, of which ``spans`` are begins and ends in ``data``, as one Arrow array.

    An empty text is null, as ``null`` is. Gives the kind of all others (bool, int64, double or
    string; null: there are none), the number of nulls, and the buffers of an array of that type:
    validity, offsets (of strings) and data. The kind is ``mixed``, and the buffers are nothing,
    where values are of several kinds, are lists or objects, integers beyond 64 bits or strings with
    a lone surrogate, have 2 GiB of strings together, or are no JSON. ValueError for wrong spans.
    """

class JsonValues:
    """Turn JSON values, fed in chunks, into JSON lines.

    Of an array its elements, each a line; with ``path``, keys one inside of the other, those of the
    array under it.
    """

    def __init__(self, path: Sequence[str] = ()) -> None: ...
    def feed(self, chunk: Buffer) -> bytes:
        """The lines in one more chunk. ValueError says what is wrong with the JSON, and where."""

    @property
    def finished(self) -> bool:
        """Whether it may end here."""

def split_lines(block: Buffer) -> npt.NDArray[np.int64]:
    """Begin and end of each line, [n, 2], without its \\n; an unterminated last one counts."""

def invalid_utf8(
    data: Buffer, spans: npt.NDArray[np.int64], level: Level = "auto"
) -> npt.NDArray[np.int64]:
    """Indices of the documents that are not valid UTF-8; ``spans`` [n, 2]: begins and ends."""

def mark_tokens(
    offsets: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int32],
    spans: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint8]:
    """1 for each token that has a part in one of the spans of its document, else 0.

    ``offsets`` [tokens, 2] and ``spans`` [k, 2] are begins and ends in documents, ascending;
    ``lengths`` are the tokens of each document, ``counts`` its spans. ValueError for wrong sums.
    """

class Encoded:
    ids: npt.NDArray[Any]  # uint16 or int32: tokens of all documents, one after the other
    lengths: npt.NDArray[np.int32]  # [n] tokens of document i with EOD; 0 when it has none
    special: npt.NDArray[np.int64]  # document index of every special token found in the text
    # [tokens, 2], where asked for: begin and end in bytes of each token in its document. A token
    # that the tokenizer puts in front of a character is where that character is; one of a frame
    # is nowhere: begin and end are equal.
    offsets: npt.NDArray[np.int32]
    unplaced: npt.NDArray[np.int64]  # documents whose offsets are not known, and mean nothing

class _EncoderOptions(TypedDict, total=False):
    dtype: Literal["uint16", "int32"]  # of ids; uint16 unless given
    cache_bytes: int  # of the word cache, rounded down to a power of two; 64 MiB unless given
    level: Level

# Content, id, special and normalized, and for most also lstrip, rstrip and single_word.
_Added = tuple[bytes, int, bool, bool] | tuple[bytes, int, bool, bool, bool, bool, bool]

class _AddedOptions(_EncoderOptions):
    added: Sequence[_Added]
    special_tokens: Literal["text", "encode"]  # what a special token inside a document becomes

class _MetaspaceOptions(_AddedOptions):
    steps: NormalizerSteps
    prefix: Literal["never", "first", "always"]  # which texts between added tokens get a space

class AnyEncoder:
    """Text -> ids, with a cache of words: one for each process, one thread at a time."""

    def encode(
        self,
        data: Buffer,
        spans: npt.NDArray[np.int64],
        before: Sequence[int] = (),
        after: Sequence[int] = (),
        offsets: bool = False,
    ) -> Encoded:
        """Encode documents of valid UTF-8, ``spans`` [n, 2] begin and end in data.

        The ids ``before`` and ``after`` go around each document that has a token.
        """

    def cache_info(self) -> dict[str, int]:
        """``words`` and ``bytes`` of the word cache, ``misses``: words whose ids were computed."""

class ByteLevelBPE(AnyEncoder):
    """A byte-level BPE."""

    def __init__(
        self,
        *,
        vocab: Sequence[bytes | None],  # bytes of each id; None: no such byte-level token
        merges: npt.NDArray[np.int32],  # [m, 3] left id, right id, product id, in rank order
        pattern: Pattern,
        form: NormalForm = "",  # into which text is normalized
        steps: NormalizerSteps = (),  # or by these
        suffix: bytes = b"",  # of the last token of each word; REQUIRES: not ignore_merges
        ignore_merges: bool = False,
        **options: Unpack[_AddedOptions],
    ) -> None: ...

class MetaspaceBPE(AnyEncoder):
    """A BPE over characters with U+2581 for a space."""

    def __init__(
        self,
        *,
        vocab: Sequence[bytes | None],  # text of each id as UTF-8; None: no such token
        merges: npt.NDArray[np.int32],  # [m, 3] left id, right id, product id, in rank order
        byte_ids: Sequence[int],  # of the 256 bytes; none without byte fallback
        unknown: int,  # the id of an unknown character, without byte fallback
        fuse_unknown: bool,  # of a run of them
        ignore_merges: bool,
        normalizes: bool,  # spaces are replaced before tokens that are normalized are looked for
        prepends: bool,  # and a space is put in front then
        cuts_at_spaces: bool,  # each space begins a word
        **options: Unpack[_MetaspaceOptions],
    ) -> None: ...

class MetaspaceUnigram(AnyEncoder):
    """A Unigram with U+2581 for a space."""

    def __init__(
        self,
        *,
        vocab: Sequence[bytes | None],  # text of each id as UTF-8; None: no such token
        scores: Sequence[float],  # of the first ids
        byte_ids: Sequence[int],  # of the 256 bytes; none without byte fallback
        unknown: int,  # the id of a run of unknown characters, without byte fallback
        splits_white_space: bool,  # it is removed; each word between gets a space in front
        **options: Unpack[_MetaspaceOptions],
    ) -> None: ...

# Pre-tokenizers: some by their names, others as the steps of a Pattern, without a ByteLevel.
Cuts = Sequence[str] | Sequence[tuple[str, str, bool]]

class WordPiece(AnyEncoder):
    """A WordPiece, as BERT's."""

    def __init__(
        self,
        *,
        vocab: Sequence[bytes | None],  # text of each id as UTF-8; None: no such token
        prefix: str,  # of a token that goes on a word
        unknown: int,  # the id of a word that is not made of tokens,
        longest_word: int,  # or has more characters
        steps: NormalizerSteps,
        cuts: Cuts,
        **options: Unpack[_AddedOptions],
    ) -> None: ...

class WordBPE(AnyEncoder):
    """A BPE over the characters, or bytes, of words."""

    def __init__(
        self,
        *,
        vocab: Sequence[bytes | None],  # text of each id as UTF-8; None: no such token
        merges: npt.NDArray[np.int32],  # [m, 3] left id, right id, product id, in rank order
        prefix: str | bytes,  # of a token that goes on a word
        suffix: str | bytes,  # of a token that ends a word
        unknown: int,  # the id of a character without a token
        fuse_unknown: bool,  # of a run of them
        byte_fallback: bool,  # what has no token becomes bytes, where these have tokens
        ignore_merges: bool,  # of a word that is a token
        of_bytes: bool,  # then ``cuts`` are steps with a ByteLevel
        steps: NormalizerSteps,
        cuts: Cuts,
        **options: Unpack[_AddedOptions],
    ) -> None: ...

class WordUnigram(AnyEncoder):
    """A Unigram of the parts of words, with U+2581 for a space."""

    def __init__(
        self,
        *,
        vocab: Sequence[bytes | None],  # text of each id as UTF-8; None: no such token
        scores: Sequence[float],  # of the first ids
        byte_ids: Sequence[int],  # of the 256 bytes; none without byte fallback
        unknown: int,  # the id of a run of unknown characters, without byte fallback
        steps: NormalizerSteps,
        cuts: Cuts,
        **options: Unpack[_AddedOptions],
    ) -> None: ...

class TextNormalizer:
    """The normalizers of a tokenizer.json. ValueError for what is unknown or broken."""

    def __init__(self, steps: NormalizerSteps) -> None: ...
    def normalize(self, data: Buffer) -> bytes: ...

def ranked_merges(vocab: Sequence[bytes | None]) -> tuple[npt.NDArray[np.int32], list[int]]:
    """The merges by which tiktoken makes the tokens of ``vocab``, bytes by rank, each once.

    int32 [m, 3], left, right and product, sorted by the product's rank; and the tokens that merging
    does not make of their own bytes. ValueError for a token of more than 4096 bytes.
    """

class PieceModel:
    """A SentencePiece model file. ValueError says why it is none, or is broken."""

    def __init__(self, raw: Buffer) -> None: ...
    pieces: list[tuple[bytes, int]]  # by id: text, type as the file has it; a new list each time
    scores: list[float]  # of the pieces, by id; a new list each time
    begin_piece: bytes  # name of the piece that begins a document
    end_piece: bytes  # name of the piece that ends a document
    unknown_surface: bytes | None  # what the unknown piece is decoded to; None: not said
    type: Literal["Unigram", "BPE", "word", "char"]
    has_rules: bool  # characters are normalized, by rules in the file
    byte_fallback: bool  # characters without a piece become bytes
    dummy_prefix: bool  # a space is put before a text
    remove_extra_whitespace: bool
    denormalizes: bool  # decoding has rules of its own
    why_not_native: str  # why PieceEncoder does not take it; "" when it does

class PieceEncoder(AnyEncoder):
    """A SentencePiece model. ValueError where ``why_not_native`` is not empty."""

    def __init__(self, model: PieceModel, **options: Unpack[_EncoderOptions]) -> None: ...

# How text is cut into words: a name of patterns(), or the steps. A step is a kind, a text and a
# flag: of a Split its behavior, its expression and invert; ("Digits", "", individual_digits);
# ("Punctuation", behavior, False); ("ByteLevel", "add_prefix_space" or "", use_regex)
Pattern = str | Sequence[tuple[str, str, bool]]

def patterns() -> list[str]:
    """Names of patterns."""

def pattern_steps(name: str) -> list[tuple[str, str, bool]]:
    """The steps of a pattern that has a name. ValueError for another name."""

class Pretokenizer:
    """A pattern. ValueError with a phrase that says what of its steps is not understood."""

    name: str | None  # of the pattern that cuts every text as this one does, if there is one
    keeps_text: bool  # whether words are the text in parts, but for a space in front of it
    def __init__(self, pattern: Pattern) -> None: ...
    def ends(self, data: Buffer, level: Level | Literal["plain"] = "auto") -> npt.NDArray[np.int64]:
        """End of each pretoken of one document, in bytes, for tests. "plain" takes one character
        after the other; the scanners of the levels are compared with it."""

def normalize(form: NormalForm, data: Buffer) -> bytes:
    """A normal form of one document, as the Hugging Face library computes it."""

def mix(*values: int) -> int:
    """A 64-bit hash of numbers in [0, 2^64), for keys; ``mix(1)`` is not ``mix(1, 0)``."""

class Permutation:
    """A bijection of [0, size), size at most 2^62, chosen by a 64-bit key; constant memory."""

    def __init__(self, size: int, key: int) -> None: ...
    def __len__(self) -> int: ...
    def at(self, i: int) -> int: ...
    def inverse(self, i: int) -> int: ...
    def many(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """``at`` of each index."""

class BlendOrder:
    """Which dataset gives sample g of a blend: a pure function of the weights' ratios and g.

    At every prefix each dataset's count is within 1.68 samples of its share, with random weights
    within 1.5. ValueError for a weight that is not a finite number above zero.
    """

    def __init__(self, weights: npt.NDArray[np.float64]) -> None: ...
    def __len__(self) -> int: ...
    def locate(self, g: int) -> tuple[int, int]:
        """The dataset of sample g, and how many samples before g were the same dataset's."""

    def locate_many(
        self, begin: int, count: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """``locate`` of samples begin to begin + count."""

    def counts(self, g: int) -> npt.NDArray[np.int64]:
        """How many of the first g samples belong to each dataset."""

class DocumentOrder:
    """One epoch: the documents in the order of ``Permutation(n, key)``, cut into samples.

    ``lengths`` (int32 [n], tokens of each document, any alignment) is not copied and must not
    change. Sample j is tokens j * seq_length to (j + 1) * seq_length + extra of the concatenated
    documents; fewer than seq_length tokens at the end are in no sample of this epoch.
    """

    def __init__(
        self, lengths: npt.NDArray[np.int32], seq_length: int, extra: int, key: int
    ) -> None: ...
    @property
    def tokens(self) -> int: ...
    @property
    def samples(self) -> int: ...
    def locate(self, j: int) -> npt.NDArray[np.int64]:
        """The pieces of sample j, [k, 3]: document, offset and length in tokens, never 0."""

    def locate_many(
        self, samples: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The pieces of all samples, one after the other, and how many each has."""

def lay_out(
    rows: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    text: npt.NDArray[np.int64],
    multiple: int = 1,
) -> npt.NDArray[np.int64]:
    """Where in ``text`` (int64 [B, S + 1], all of it flat) the tokens of each row go.

    Rows are those of ``locate_many``; sample i goes to ``text[places[i]]``, where its rows begin at
    multiples of ``multiple``, and the tokens that it lacks are set to 0. ValueError for what does
    not fit.
    """

class TokenFile:
    """The .bin of a dataset, or a track, and its index, [n] each, aligned or not, not copied.

    Both functions copy tokens into ``text`` and return -1, or the first row that lies outside its
    sequence, or whose sequence has a wrong entry in the index; those before it are copied. With
    ``numbers``, uint32 or uint64 [m], rows are of a view: of the sequences ``numbers[sequence]``.
    ``token_bytes`` are those of a token of the .bin, where ``tokens`` are a track beside it.
    """

    def __init__(
        self,
        tokens: npt.NDArray[Any],
        pointers: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        level: Level = "auto",
        numbers: npt.NDArray[np.unsignedinteger[Any]] | None = None,
        token_bytes: int = 0,
    ) -> None: ...
    def gather(
        self,
        rows: npt.NDArray[np.int64],
        targets: npt.NDArray[np.int64],
        text: npt.NDArray[np.int64],
    ) -> int:
        """Copy each row to its target, see ``lay_out``."""

    def gather_samples(
        self,
        rows: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        text: npt.NDArray[np.int64],
        multiple: int = 1,
    ) -> int:
        """``lay_out`` and ``gather``."""

class Assembly:
    """Makes masks, positions and document boundaries of samples of ``length`` input tokens."""

    def __init__(
        self,
        length: int,
        *,
        extra: bool,
        joined: bool,
        boundaries: bool,
        mask_eod: int | None,
        reset_at: int | None,
        cut_at: int | None = None,
        multiple: int = 1,
    ) -> None: ...
    def fill(
        self,
        text: npt.NDArray[np.int64],  # [B, length + 1]
        rows: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        loss_mask: npt.NDArray[np.float32],  # [B, length]
        position_ids: npt.NDArray[np.int64],  # [B, length]
        cu_seqlens: npt.NDArray[np.int32] | None,  # [B, length + 1]
        max_seqlen: npt.NDArray[np.int32] | None,  # [B]
    ) -> None:
        """Write the lines ``places`` of the arrays; the last two with ``boundaries`` only."""

def apply_track(
    kind: str,  # "mask", "weights", "labels"
    values: npt.NDArray[np.int64],  # [n, length + 1]; of weights the bits
    places: npt.NDArray[np.int64],  # [n]
    loss_mask: npt.NDArray[np.float32],  # [B, length]
    labels: npt.NDArray[np.int64] | None = None,  # [B, length + 1], of the track "labels" alone
) -> int:
    """Apply values to the lines ``places``; -1, or the line with a weight that is not finite."""

class ArrayPool:
    """Memory for arrays, used again when nobody holds an array in it any more."""

    def __init__(self) -> None: ...
    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """A new array without values."""

class ListedSamples:
    """The samples of a sample index and a shuffle index; the arrays are not copied."""

    def __init__(
        self,
        lengths: npt.NDArray[np.int32],  # aligned or not
        documents: npt.NDArray[np.int32],
        index: npt.NDArray[Any],  # int32 or int64 [samples + 1, 2]
        shuffle: npt.NDArray[Any],  # uint32 or int64 [samples]
        extra: bool,
    ) -> None: ...
    def locate_many(
        self, samples: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The rows of all samples, one after the other, and how many each has.

        ValueError for entries that are out of range.
        """

def pack(
    lengths: npt.NDArray[np.int32],  # [n], aligned or not
    seq_length: int,
    extra: int,
    key: int,
    *,
    together: bool,
    multiple: int = 1,
) -> dict[str, npt.NDArray[Any]]:
    """Documents packed into samples, best-fit in windows, or not ``together``: one piece a sample.

    - ``entries`` uint16: place of each piece's document in its window; + 2^15 begins a sample
    - ``starts`` int64: the entry of every 64th sample
    - ``windows`` int64 [w + 1, 3]: the first sample, the first of full pieces, and its entry
    - ``totals`` int64 [5]: tokens, tokens left out, pieces, tokens of all pieces, labels
    """

class Packing:
    """Finds the pieces of packed samples; the arrays are those of ``pack`` and are not copied.

    ValueError where they cannot be of these lengths.
    """

    def __init__(
        self,
        lengths: npt.NDArray[np.int32],
        seq_length: int,
        extra: int,
        key: int,
        *,
        entries: npt.NDArray[np.uint16],
        starts: npt.NDArray[np.int64],
        windows: npt.NDArray[np.int64],
        multiple: int = 1,
    ) -> None: ...
    def __len__(self) -> int: ...
    def locate(self, sample: int) -> npt.NDArray[np.int64]:
        """The pieces of a sample, [k, 3]: document, offset and length in tokens, 2 or more."""

    def locate_many(
        self, samples: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The pieces of all samples, one after the other, and how many each has."""

class RandomState:
    """numpy's ``RandomState(seed)``, for its shuffle: equal permutations, several times faster."""

    def __init__(self, seed: int) -> None: ...
    def shuffle(self, values: npt.NDArray[Any]) -> None:
        """Shuffle a contiguous array of 32-bit or 64-bit integers, or of entries, [n] in place."""

    def state(self) -> tuple[npt.NDArray[np.uint32], int]:
        """The 624 words of the generator, and how many of them are taken."""

def number_sequences(
    lengths: npt.NDArray[np.int32], first: int, entries: npt.NDArray[np.void]
) -> None:
    """Write the entries of the sequences ``first``, ``first + 1`` and so on.

    ``lengths`` int32 [n], aligned or not. An entry is a structure of uint32, the sequence, and
    uint16: its length and one, or 0 where that does not fit. ValueError for a negative length.
    """

class SampleWalk:
    """Where samples begin: a position in ``entries`` and an offset in tokens into the sequence.

    ``lengths`` int32, aligned or not, are those of the sequences ``first``, ``first + 1`` and so
    on. Nothing is copied, and nothing may change.
    """

    def __init__(
        self,
        entries: npt.NDArray[np.void],
        lengths: npt.NDArray[np.int32],
        first: int,
        seq_length: int,
        *,
        extra: bool,
    ) -> None: ...
    def rows(self, count: int, *, wide: bool) -> npt.NDArray[Any]:
        """The next rows, int32 or int64 [count, 2]; ValueError where the tokens do not suffice."""

def megatron_blend(
    weights: npt.NDArray[np.float64],
    size: int,
    *,
    limits: Sequence[int] = ...,
    fused: bool = False,
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
    """The dataset of each sample and its number there, greedily; no more than limits[i] of i.

    ``fused`` rounds as builds for ARM do, which contract the multiply and the subtraction.
    """

_Ids = npt.NDArray[np.uint16] | npt.NDArray[np.uint32] | npt.NDArray[np.uint64]

def band_hashes(
    tokens: _Ids, spans: npt.NDArray[np.int64], ngram: int, bands: int, rows: int
) -> npt.NDArray[np.uint64]:
    """The hash of each band of the signatures of documents: uint64 [documents, bands].

    Document i is tokens [spans[i, 0], spans[i, 1]). Two have an equal hash in a band with the
    probability J ** rows, where J is the Jaccard similarity of their sets of n-grams. Of one
    without a token all are 0. The same values on every machine, for any dtype. ValueError unless
    ngram, bands and rows are at least 1, and bands * rows at most 4096.
    """

def text_digests(
    data: Buffer, spans: npt.NDArray[np.int64], level: Level = "auto"
) -> npt.NDArray[np.uint8]:
    """XXH3-128 of each span, [begin, end), of some bytes: uint8 [n, 16], as the format orders them.

    ValueError for wrong spans.
    """

def token_digests(
    tokens: _Ids, spans: npt.NDArray[np.int64], level: Level = "auto"
) -> npt.NDArray[np.uint8]:
    """The same of documents' tokens, each as four bytes, little endian. Spans count tokens.

    A document of uint64 in which not all are int64 of 32 bits has eight for each, and a 0 behind.
    """

def are_texts(
    tokens: _Ids,
    spans: npt.NDArray[np.int64],
    data: Buffer,
    text_spans: npt.NDArray[np.int64],
    vocabulary: Buffer,
    ends: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Whether the bytes of the tokens of each document are those of its text: bool [documents].

    Token i has vocabulary[ends[i - 1] : ends[i]]. ValueError for wrong spans or ends.
    """

def equal_pairs(
    keys: npt.NDArray[np.uint64], part: int = 0, parts: int = 1, neighbours: bool = False
) -> npt.NDArray[np.int64]:
    """Pairs of documents with equal keys, [pairs, 2], ordered by key, then by document.

    A key is a number, or two: uint64 [documents] or [documents, 2]. For each document but the first
    of its key (first, document), and with ``neighbours`` after it (the one before it, document)
    where that is another pair. Only keys in share ``part`` of ``parts``, which together are the
    whole.
    """

def join_pairs(parents: npt.NDArray[np.int64], pairs: npt.NDArray[np.int64]) -> None:
    """Join trees of a forest in which parents[i] <= i, so that the smallest number is their root.

    Begins with parents[i] = i. ValueError for a parent or a document that is none.
    """

def separate_pairs(
    parents: npt.NDArray[np.int64], pairs: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The pairs that are in different trees, in order. ValueError as ``join_pairs``."""

def jaccard(a: _Ids, b: _Ids, ngram: int) -> float:
    """What the sets of n-grams of two documents share of all that they have, in [0, 1].

    Tokens that are fewer than an n-gram are one. 0 where neither has a token.
    """

class Phrases:
    """Finds in documents the n-grams of texts, and whole texts that are shorter.

    ``texts`` are the tokens of all texts, which end at ``ends``. One of fewer than ``shortest``
    tokens is left out. ``sizes`` are those of the tokens, 1 to ``size``, so that an n-gram has as
    many as come to ``ngram * size``. ValueError unless 1 <= shortest <= ngram.
    """

    def __init__(
        self,
        texts: npt.NDArray[np.uint64],
        ends: npt.NDArray[np.int64],
        ngram: int,
        shortest: int,
        sizes: npt.NDArray[np.uint8] = ...,
        size: int = 1,
    ) -> None: ...
    @property
    def phrases(self) -> npt.NDArray[np.int64]:
        """Each different phrase where it is first: begin in ``texts``, tokens: [phrases, 2]."""

    def find(self, tokens: _Ids, spans: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where phrases are: (document, begin, end, phrase), [hits, 4], by document.

        Spans are those of ``band_hashes``. Tokens are compared one by one.
        """

# Hashes of words; whether each is a character of a script without spaces; its place, [words, 2].
_Words = tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_], npt.NDArray[np.int64]]

def words(text: Buffer, punctuation: Literal["", "spaces", "nothing"] = "") -> _Words:
    """The words of a text in lower case, without accents, punctuation and markup, by their bytes.

    ``csrc/core/documents/words.hpp`` says what they are. All punctuation may be white space, or
    nothing.
    """

class TokenWords:
    """The words of documents by their tokens: i has pieces[ends[i - 1] : ends[i]].

    One without bytes is white space. ValueError for ends that do not ascend in the pieces.
    """

    def __init__(self, pieces: Buffer, ends: npt.NDArray[np.int64]) -> None: ...
    def words(self, tokens: _Ids) -> _Words:
        """The words of a document, by its tokens."""

    def hashes(self, tokens: _Ids) -> npt.NDArray[np.uint32]:
        """Their hashes alone, without a look at their text where tokens are parts of words."""

    def find(
        self, phrases: Phrases, tokens: _Ids, spans: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Where phrases of such hashes are, as ``Phrases.find``, by tokens."""
