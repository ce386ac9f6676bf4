"""The facts about a tokenizer, a trial of it on texts, and its comparison with other libraries."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.display import message
from tokpack.errors import TokenizerError, UsageError, WorkerError, option
from tokpack.look import bench_one
from tokpack.sources import discover, make_parts, read
from tokpack.tokenizers import (
    HuggingFaceTokenizer,
    NativeTokenizer,
    SentencePieceTokenizer,
    find_bos,
    library_of,
    self_check,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from tokpack.sources import Source
    from tokpack.tokenizers import Tokenizer


@dataclass(frozen=True)
class TokenizerFacts:
    """The facts about a tokenizer; None for what its kind does not have.

    ``unused`` ids below ``vocab_size`` have no token. ``pattern`` and ``normalizer`` are "" if
    there is none. ``files`` are the names of its files, ``notes`` what a user should know about how
    they were read.
    """

    name: str
    files: tuple[str, ...]
    kind: str
    model: str  # the algorithm from words to ids
    native: bool
    why_not_native: str
    pattern: str | None
    normalizer: str | None
    vocab_size: int
    merges: int | None
    unused: int | None
    whole_words: bool  # a word that is a token is not merged
    special: dict[str, int]
    special_in_text: str  # "text" or "encode", by default
    eod: tuple[str, int] | None
    bos: tuple[str, int] | None
    sha256: str
    notes: tuple[str, ...]


def tokenizer_facts(tokenizer: Tokenizer) -> TokenizerFacts:
    """The facts about a tokenizer; nothing is encoded."""
    model, pattern, normalizer, merges, unused, whole_words = _inside(tokenizer)
    eod = tokenizer.eod_id
    names = {token_id: text for text, token_id in tokenizer.special_ids.items()}
    bos = find_bos(tokenizer)
    return TokenizerFacts(
        name=tokenizer.name,
        files=tuple(tokenizer.files),
        kind=tokenizer.kind,
        model=model,
        native=tokenizer.native,
        why_not_native=tokenizer.why_not_native,
        pattern=pattern,
        normalizer=normalizer,
        vocab_size=tokenizer.vocab_size,
        merges=merges,
        unused=unused,
        whole_words=whole_words,
        special=dict(sorted(tokenizer.special_ids.items(), key=lambda item: item[1])),
        special_in_text=tokenizer.special_tokens_default,
        eod=None if eod is None else (names.get(eod) or tokenizer.decode([eod]), eod),
        bos=None if bos is None else (bos, tokenizer.special_ids[bos]),
        sha256=tokenizer.fingerprint,
        notes=tokenizer.notes,
    )


_Inside = tuple[str, str | None, str | None, int | None, int | None, bool]


def _inside(tokenizer: Tokenizer) -> _Inside:
    if isinstance(tokenizer, NativeTokenizer):
        spec = tokenizer.spec
        used = {token.id for token in spec.added}
        unused = sum(token is None and i not in used for i, token in enumerate(spec.vocab))
        merges = len(spec.merges)
        return "BPE", spec.pattern, spec.form, merges, unused, spec.ignore_merges
    if isinstance(tokenizer, HuggingFaceTokenizer):
        definition = json.loads(tokenizer.raw)
        model = definition["model"]
        merges = model.get("merges")
        return (
            _with_bytes(str(model.get("type", "")), bool(model.get("byte_fallback"))),
            _described(definition.get("pre_tokenizer"), "pretokenizers"),
            _described(definition.get("normalizer"), "normalizers"),
            len(merges) if isinstance(merges, list) else None,
            None,
            bool(model.get("ignore_merges", False)),
        )
    if isinstance(tokenizer, SentencePieceTokenizer):
        pieces = tokenizer.model
        steps = {
            "rules of the file": pieces.has_rules,
            "single spaces": pieces.remove_extra_whitespace,
            "a space before the text": pieces.dummy_prefix,
        }
        normalizer = ", ".join(step for step, done in steps.items() if done)
        return _with_bytes(pieces.type, pieces.byte_fallback), None, normalizer, None, None, False
    return "", None, None, None, None, False


def _with_bytes(model: str, byte_fallback: bool) -> str:
    return f"{model} with byte fallback" if byte_fallback else model


def _described(node: Any, children: str) -> str:
    """The types of the steps in a tokenizer.json, and their splitting expressions."""
    if not isinstance(node, dict):
        return ""
    if node.get("type") == "Sequence":
        return ", ".join(filter(None, (_described(child, children) for child in node[children])))
    pattern = node.get("pattern")
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    return f"{node.get('type')} {expression}" if expression else str(node.get("type"))


_SCRIPTS = (
    "Nobody's perfect; it's 3 o'clock, and we're 1,234,567 steps away.\n",
    "\u041d\u0438\u043a\u0442\u043e \u043d\u0435 \u0437\u043d\u0430\u0435\u0442, 2,5.\n",
    "\u6771\u4eac\u306f\u9996\u90fd\u3067\u3059\u3002\u4f60\u597d\uff0c\u4e16\u754c\n",
    "\uc548\ub155, \uc138\uacc4! \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd\n",
    "caf\u00e9 cafe\u0301 na\u00efve \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\n",
    "\U0001f600\U0001f468\u200d\U0001f469 \u20ac5 x\u00b2 \u216b\t\tend  \r\n\r\n   indented\n",
)
_WARM_ROUNDS = 3
_LONGEST_CHARACTER = 4  # bytes


class Texts(NamedTuple):
    """Documents of one group: uint8 UTF-8, and int64 [n, 2] begin and end of each."""

    name: str
    data: npt.NDArray[np.uint8]
    spans: npt.NDArray[np.int64]

    @classmethod
    def of(cls, name: str, texts: Sequence[bytes]) -> Texts:
        sizes = np.array([len(text) for text in texts], np.int64)
        ends = np.cumsum(sizes)
        return cls(
            name, np.frombuffer(b"".join(texts), np.uint8), np.stack([ends - sizes, ends], 1)
        )

    @property
    def size(self) -> int:
        """Bytes of text."""
        return len(self.data)


@dataclass(frozen=True)
class TokenizerTrial:
    """The result of a trial: are the ids right, how fast, how many bytes per token.

    ``difference`` is "" if the ids equal the reference's, None if the tokenizer is the reference.
    Speeds are MB (10^6 bytes) of text per second on one core, with an empty and a full word cache.
    """

    text_bytes: int
    documents: int
    tokens: int
    difference: str | None
    cold: float
    warm: float


def read_texts(
    inputs: Sequence[str], *, key: str, input_format: str, by: str | None, most: int
) -> list[Texts]:
    """The first texts of each input, at most ``most`` bytes of it: a group for each file.

    With ``by`` a group for each value of that key. UsageError if there is no text.
    """
    keys = [key] if by is None else [key, by]
    groups: dict[str, list[bytes]] = {}
    for source in discover(inputs, input_format=input_format):
        for values in _first(source, keys, most):
            name = source.name if by is None else values[1].decode()
            groups.setdefault(name, []).append(values[0])
    if not groups:
        raise UsageError(f"no text under {' and '.join(map(repr, keys))} in {', '.join(inputs)}")
    return [Texts.of(name, texts) for name, texts in sorted(groups.items())]


def _first(source: Source, keys: Sequence[str], most: int) -> Iterator[list[bytes]]:
    """The values of the keys of each record, up to ``most`` bytes under the first key."""
    for part in make_parts([source], ways=1):
        with closing(read(source, part, keys)) as batches:
            for batch in batches:
                columns = [batch.documents[key] for key in keys]
                for i in range(len(columns[0])):
                    values = [column.text(i) for column in columns]
                    values[0] = _cut(values[0], most)
                    most -= len(values[0])
                    if values[0]:
                        yield values
                    if most < _LONGEST_CHARACTER:
                        return


def _cut(text: bytes, size: int) -> bytes:
    """At most ``size`` bytes of a text, whole characters."""
    return text if len(text) <= size else text[:size].decode(errors="ignore").encode()


def sample_texts(most: int) -> Texts:
    """Text on every machine: the sources of Python's library, and lines in many scripts."""
    texts = ["".join(_SCRIPTS[i:] + _SCRIPTS[:i]).encode() for i in range(len(_SCRIPTS))]
    size = sum(map(len, texts))
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))):
        if size >= most:
            break
        with open(path, "rb") as file:
            texts.append(_cut(file.read(most), most - size))
        size += len(texts[-1])
    return Texts.of("Python's library", texts)


def mix(groups: Sequence[Texts], most: int) -> Texts:
    """Documents of all groups in turn, with the same share of ``most`` bytes from each."""
    texts: list[bytes] = []
    for group in groups:
        left = most // len(groups)
        for begin, end in group.spans.tolist():
            texts.append(_cut(group.data[begin:end].tobytes(), left))
            left -= len(texts[-1])
            if left < _LONGEST_CHARACTER:
                break
    return Texts.of("", texts)


def tokens_of(tokenizer: Tokenizer, texts: Texts) -> int:
    """The number of tokens of the texts, without EOD."""
    encoder = tokenizer.encoder(dtype="int32", append_eod=False)
    return len(encoder.encode(texts.data, texts.spans).ids)


def try_out(tokenizer: Tokenizer, texts: Texts) -> TokenizerTrial:
    """Encode texts in one thread, and by the reference as well."""
    difference: str | None = None
    try:
        if self_check(tokenizer, texts.data, texts.spans, most=texts.size):
            difference = ""
    except TokenizerError as error:
        difference = str(error)
    encoder = tokenizer.encoder(dtype="int32", append_eod=False)
    seconds = []
    tokens = 0
    for _ in range(1 + _WARM_ROUNDS):
        began = time.perf_counter()
        tokens = len(encoder.encode(texts.data, texts.spans).ids)
        seconds.append(max(time.perf_counter() - began, 1e-9))
    return TokenizerTrial(
        text_bytes=texts.size,
        documents=len(texts.spans),
        tokens=tokens,
        difference=difference,
        cold=texts.size / seconds[0] / 1e6,
        warm=texts.size / min(seconds[1:]) / 1e6,
    )


@dataclass(frozen=True)
class Comparison:
    """Whether AutoTokenizer of a version of transformers gives the same ids for some texts.

    ``difference`` is "" where it does.
    """

    version: str
    texts: int
    difference: str


def compare_with_transformers(tokenizer: Tokenizer, texts: Texts) -> Comparison:
    """Encode texts, and all added tokens inside of text, with transformers as well.

    It reads the same folder, or the same tokenizer.json if that was named. UsageError without
    transformers, or if it cannot read the files.
    """
    try:
        import transformers
    except ModuleNotFoundError:
        raise UsageError(
            f"{option('check')} needs the package transformers: pip install transformers"
        ) from None
    if not tokenizer.files:
        raise UsageError(f"tokenizer {tokenizer.name} has no files that transformers can read")
    file = next(iter(tokenizer.files.values()))
    theirs: Any
    try:
        if os.path.isfile(tokenizer.name):
            fast: Any = transformers.PreTrainedTokenizerFast
            theirs = fast(tokenizer_file=str(file))
        else:
            theirs = transformers.AutoTokenizer.from_pretrained(
                file.parent, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # of any class, perhaps with many lines
        raise UsageError(
            f"transformers {transformers.__version__} cannot read {file}: {message(str(error))}"
        ) from None
    documents = [str(texts.data[begin:end].data, "utf-8") for begin, end in texts.spans.tolist()]
    added = sorted({*theirs.get_added_vocab(), *tokenizer.special_ids})
    documents += [f"a {token} b{token}{token}\n\tc{token}" for token in added]
    pairs = (
        (tokenizer.encode(text), theirs.encode(text, add_special_tokens=False))
        for text in documents
    )
    different = next(((ours, other) for ours, other in pairs if ours != other), None)
    difference = ""
    if different is not None:
        ours, other = different
        both = enumerate(zip(ours, other, strict=False))
        at = next((i for i, (one, two) in both if one != two), min(len(ours), len(other)))
        near = slice(max(0, at - 1), at + 5)
        difference = f"{ours[near]} here, {other[near]} there for {tokenizer.decode(ours[near])!r}"
    elif len(theirs) != tokenizer.vocab_size:
        difference = f"{tokenizer.vocab_size:,} ids here, {len(theirs):,} there"
    return Comparison(transformers.__version__, len(documents), difference)


# tokpack beside other installed libraries.

Row = dict[str, Any]  # the output of ``bench_one``
_RUNS = 3  # processes of each library


@dataclass(frozen=True)
class LibraryTrial:
    """A library on the same texts, in one thread of processes of its own.

    ``construction`` is processor seconds until it has encoded one letter. ``first`` is the speed on
    the first 10 MB, each text once, and ``later`` on the rest (0 if none), in MB (10^6 bytes) of
    text per processor second. All are medians over runs. ``same_ids``: the ids equal tokpack's.
    ``failure`` says why there are no figures.
    """

    library: str
    version: str = ""
    construction: float = 0.0
    first: float = 0.0
    later: float = 0.0
    same_ids: bool = False
    failure: str = ""


def bench(
    tokenizer: Tokenizer, texts: Texts, *, libraries: Sequence[str] = ()
) -> list[LibraryTrial]:
    """Encode ``texts`` by tokpack and by some libraries, or all that are installed, in turns.

    tokpack's own ids are those of ``encode`` without EOD. TokenizerError for a tokenizer without a
    tokenizer.json, which the other libraries read.
    """
    names = list(dict.fromkeys(["tokpack", *(libraries or filter(find_spec, bench_one.LIBRARIES))]))
    for name in names:
        if name not in bench_one.LIBRARIES:
            raise UsageError(
                f"{name} is not a library that bench knows: {', '.join(bench_one.LIBRARIES)}"
            )
    with tempfile.TemporaryDirectory(prefix="tokpack-bench-") as folder:
        work = Path(folder)
        library_of(tokenizer).save(str(work / "tokenizer.json"))
        texts.data.tofile(work / "text")
        np.array([0, *texts.spans[:, 1]], np.int64).tofile(work / "offsets")
        rounds = [[_measured(name, work, texts.size) for name in names] for _ in range(_RUNS)]
    own = rounds[0][0]
    if "failure" in own:
        raise WorkerError(own["failure"])
    columns = zip(names, zip(*rounds, strict=True), strict=True)
    return [_summed(name, rows, own["ids"]) for name, rows in columns]


def _measured(name: str, work: Path, size: int) -> Row:
    """The measurements of one process, or the ``failure`` that it reported last."""
    arguments = [name, work / "text", work / "offsets", size, work]
    done = subprocess.run(
        [sys.executable, "-P", bench_one.__file__, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return {"failure": (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def _summed(name: str, rows: Sequence[Row], ids: str) -> LibraryTrial:
    for row in rows:
        if "failure" in row:
            return LibraryTrial(name, failure=row["failure"])

    def speed(part: str) -> float:
        parts = [row[part] for row in rows]
        return float(median(one["bytes"] / 1e6 / max(one["seconds"], 1e-9) for one in parts))

    construction = median(row["construction"] for row in rows)
    same = all(row["ids"] == ids for row in rows)
    version = rows[0]["version"]
    return LibraryTrial(name, version, construction, speed("first"), speed("later"), same)
