"""What is fuzzed in Python: each target takes bytes, and raises for nothing but a defect.

An input of several files is their bytes one behind the other, each after its length in 3 bytes.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import itertools
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import tokpack
from tokpack.dataset import index_chunks
from tokpack.dataset.verify import verify
from tokpack.display import brief
from tokpack.errors import FormatError, InputError, TokpackError
from tokpack.formats.conversion import convert
from tokpack.samples.blend.file import load_blend
from tokpack.sources import discover, make_parts, read
from tokpack.sources.compression import frame_ends
from tokpack.storage.disk.durable import replace_file
from tokpack.storage.disk.foreign import parse_json
from tokpack.storage.disk.foreign_yaml import parse_yaml
from tokpack.tokenizers.load import count_ids
from tokpack.trainer.config.flags import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

SUFFIXES = (
    *("jsonl", "json", "txt", "jsonl.zst", "jsonl.gz", "jsonl.xz", "jsonl.bz2"),
    *("parquet", "arrow", "tar", "zip", "dat", "bin"),
)
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


@functools.cache
def _folder() -> Path:
    """Where the targets work; it goes when Python ends, of which libFuzzer gives it no time."""
    made = tempfile.mkdtemp(prefix="fuzz-", dir=os.environ.get("FUZZ_FOLDER", MEMORY))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def joined(*files: bytes) -> bytes:
    """Several files as one input."""
    return b"".join(len(file).to_bytes(3, "little") + file for file in files)


def parted(data: bytes, count: int) -> list[bytes]:
    """The files of an input; the last gets what is left."""
    files = []
    for _ in range(count - 1):
        size = int.from_bytes(data[:3], "little")
        files.append(data[3 : 3 + size])
        data = data[3 + size :]
    return [*files, data[3:]]


def dataset(data: bytes) -> None:
    """.idx, .bin and manifest: refused, or read as one sequence after the other."""
    idx, tokens, manifest = parted(data, 3)
    prefix = str(_folder() / "d")
    for suffix, content in (("idx", idx), ("bin", tokens), ("json", manifest)):
        Path(f"{prefix}.{suffix}").write_bytes(content)
    with contextlib.suppress(FormatError, InputError):
        tokpack.Manifest.load(prefix).to_json()
    with contextlib.suppress(FormatError, InputError):
        verify(prefix)
    Path(f"{prefix}.json").unlink()
    try:
        opened = tokpack.MMapIndexedDataset(prefix)
        sequences = [opened[number] for number in range(len(opened))]
    except (FormatError, InputError):
        return
    assert sum(sequence.nbytes for sequence in sequences) == len(tokens)
    assert b"".join(sequence.tobytes() for sequence in sequences) == tokens
    assert len(opened.sizes) == len(opened)


FOREIGN = (("datatrove", "ds"), ("npy", "npy"))
FOREIGN += (("raw", "raw"), ("llm.c", "bin"), ("parquet", "parquet"), ("olmo", "npy"))


def imported(data: bytes) -> None:
    """A dataset of another program, its ids and its index: refused, or converted whole."""
    kind, suffix = FOREIGN[data[0] % len(FOREIGN) if data else 0]
    first, second = parted(data[1:], 2)
    folder = _folder() / "foreign"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / f"a.{suffix}").write_bytes(first)
    for index in ("a.ds.index", "a.csv.gz"):
        (folder / index).write_bytes(second)
    eod = 7 if kind in ("npy", "raw", "llm.c") else None
    dtype = "uint16" if kind in ("raw", "olmo") else None
    try:
        convert(folder / f"a.{suffix}", folder / "out", from_=kind, eod=eod, input_dtype=dtype)
    except TokpackError:
        assert not list(folder.glob("out.[bi]*"))
        return
    verify(folder / "out")


def tokenizer(data: bytes) -> None:
    """A tokenizer.json, or edits of a right one: refused, or one that encodes."""
    path = _folder() / "tokenizer.json"
    path.write_bytes(data if data.startswith(b"{") else _edited(data))
    text = np.frombuffer("the  cat's é 12 <|endoftext|>\n".encode(), np.uint8)
    try:
        loaded = tokpack.load_tokenizer(str(path))
        encoder = loaded.encoder(dtype="int32", append_eod=False)
        encoded = encoder.encode(text, np.array([[0, len(text)]], np.int64))
        assert loaded.native or len(encoded.ids) == encoded.lengths.sum()
    except TokpackError:
        pass


_VALUES = (
    *(None, True, False, 0, 1, -1, 2**31, 2**64, 0.5, "", "a", "ByteLevel", "<|endoftext|>"),
    *([], {}, [0, 0], ["a", "b"], {"type": "Split"}, {"type": "NFC"}, "\ud800", "\u0120the"),
)


@functools.cache
def _tokenizer_json() -> str:
    from support import encoding_tools

    return encoding_tools.byte_tokenizer(_folder() / "right.json").read_text()


def _edited(script: bytes) -> bytes:
    """A tokenizer.json in which values were replaced: place, place, value; place, place, ..."""
    value = json.loads(_tokenizer_json())
    del value["model"]["merges"][20:]
    for first, second, new in zip(script[::3], script[1::3], script[2::3], strict=False):
        node, place = value, first
        for _ in range(6):  # down to a leaf, or part of the way
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = keys[place % len(keys)]
            place = place // len(keys) + second
            below = node[key]
            if not isinstance(below, (dict, list)) or place % 5 == 0:
                node[key] = copy.deepcopy(_VALUES[new % len(_VALUES)])
                break
            node = below
    return json.dumps(value).encode()


def discovered(data: bytes) -> None:
    """A file of any name: refused, or the same documents however it is cut."""
    if not data:
        return
    path = _folder() / f"f.{SUFFIXES[data[0] % len(SUFFIXES)]}"
    path.write_bytes(data[1:])
    os.utime(path, (1, 1))
    try:
        whole = _documents(path, ways=1)
        several = _documents(path, ways=3)
    except TokpackError:
        return
    finally:
        path.unlink()
    assert whole == several


def _documents(path: Path, ways: int) -> list[bytes]:
    sources = discover([str(path)])
    parts = make_parts(sources, ways=ways, target_bytes=40 * (4 - ways), smallest_bytes=1)
    found: list[bytes] = []
    for part in parts:
        block = 1 << 20 if ways == 1 else 64
        for batch in read(
            sources[part.source], part, ["text"], block_bytes=block, max_document_bytes=1 << 16
        ):
            documents = batch.documents["text"]
            assert batch.records == len(documents) + len(batch.bad)
            for begin, end in documents.spans.tolist():
                text = documents.data[begin:end].tobytes()
                text.decode("utf-8")
                found.append(text)
    return found


def foreign(data: bytes) -> None:
    """The readers of JSON and YAML: refused in one short line, or a value that can be written."""
    for parse in (parse_json, parse_yaml):
        try:
            value = parse(data, "f")
        except FormatError:
            continue
        if parse is parse_json:
            json.dumps(value)
        assert len(brief(value)) <= 600


def blend_file(data: bytes) -> None:
    """A blend file, as YAML: refused, or a blend whose datasets are looked for."""
    path = _folder() / "b.yaml"
    path.write_bytes(data)
    with contextlib.suppress(TokpackError):
        load_blend(path)


def flags_file(data: bytes) -> None:
    """A configuration in YAML and DeepSpeed's JSON: refused, or a configuration."""
    path = _folder() / "c.yaml"
    path.write_bytes(data)
    for words in ([str(path)], ["--deepspeed_config", str(path)]):
        with contextlib.suppress(TokpackError):
            resolve(words)


def merges(data: bytes) -> None:
    """GPT-2's pair of files, and a vocabulary of words: refused, or a tokenizer."""
    vocab, lines = parted(data, 2)
    (_folder() / "vocab.json").write_bytes(vocab)
    (_folder() / "merges.txt").write_bytes(lines)
    with contextlib.suppress(TokpackError):
        count_ids(str(_folder() / "vocab.json"))
    pair = {"vocab_file": _folder() / "vocab.json", "merge_file": _folder() / "merges.txt"}
    alone = {"vocab_file": _folder() / "vocab.json", "tokenizer_type": "Whitespace"}
    for files in (pair, alone):
        with contextlib.suppress(TokpackError):
            tokpack.load_tokenizer(**files).fingerprint  # noqa: B018


def zstd(data: bytes) -> None:
    """Headers of zstd frames, walked without decompressing: ends that ascend, inside the file."""
    path = _folder() / "z.zst"
    path.write_bytes(data)
    with path.open("rb") as file:
        ends = list(frame_ends(file.fileno(), len(data)))
    assert ends == sorted(set(ends))
    assert all(0 < end <= len(data) for end in ends)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "dataset": dataset,
    "imported": imported,
    "tokenizer": tokenizer,
    "discovered": discovered,
    "foreign": foreign,
    "blend_file": blend_file,
    "flags_file": flags_file,
    "merges": merges,
    "zstd": zstd,
}


def seeds(folder: Path) -> None:
    """Write inputs to begin with, one folder for each target."""
    golden = Path(__file__).resolve().parents[1] / "golden"
    number = itertools.count()
    for name in TARGETS:
        (folder / name).mkdir(parents=True, exist_ok=True)

    def put(target: str, data: bytes) -> None:
        (folder / target / f"seed{next(number)}").write_bytes(data)

    for idx in sorted(golden.glob("*/*.idx")):
        if not idx.with_suffix(".bin").exists():  # one of which only the lengths are kept
            continue
        files = [idx, idx.with_suffix(".bin"), golden / "v1" / "uint16.json"]
        put("dataset", joined(*(file.read_bytes() for file in files)))
    for sample in _samples():
        put("discovered", sample)
    for sample in _foreign_samples(folder / "made"):
        put("imported", sample)
    for kind in ("byte", "word"):
        from support import encoding_tools

        made = getattr(encoding_tools, f"{kind}_tokenizer")(_folder() / "made.json")
        put("tokenizer", made.read_bytes())
    _put_texts(put)
    for first in range(0, 250, 10):
        put("tokenizer", bytes((first, 3 * first % 256, first % 21)))


def _put_texts(put: Callable[[str, bytes], None]) -> None:
    """Seeds of the targets that read text, and of zstd's frames."""
    import zstandard

    blend = b"tokpack_blend: 1\nseq_length: 8\ndatasets:\n- prefix: a\n  weight: 0.5\n- b: 1\n"
    blend += b"valid: {v: [a]}\nschedule:\n- {from: 3, weights: [1, 2]}\n"
    config = b'{"num-layers": 2, "seq-length": 8, "data-path": "a", "train-iters": 5,\n'
    config += b'"fp16": {"enabled": true, "loss_scale": 0}, "optimizer": {"type": "Adam",\n'
    config += b'"params": {"lr": 0.1, "betas": [0.9, 0.95]}}}'
    for target in ("foreign", "blend_file", "flags_file"):
        for text in (blend, config, b"a: &a [1, x]\nb: *a\nc: !!int 7\n", b'{"a": [null, 1e3]}'):
            put(target, text)
    put("merges", joined(b'{"a": 0, "b": 1, "ab": 2}', b"#version: 0.2\na b\n"))
    put("merges", joined(b'{"<unk>": 0, "w": 1}', b""))
    frame = zstandard.ZstdCompressor().compress
    put("zstd", frame(b"one" * 90) + frame(b"two") + b"\x50\x2a\x4d\x18\2\0\0\0ab" + frame(b""))


def _foreign_samples(folder: Path) -> list[bytes]:
    folder.mkdir()
    prefix = str(folder / "d")
    tokens = np.array([1, 2, 3, 7, 4, 7, 5, 6, 7], np.uint16)
    tokens.tofile(f"{prefix}.bin")
    replace_file(
        f"{prefix}.idx", index_chunks("uint16", np.array([4, 2, 3]), np.array([0, 1, 2, 3]))
    )
    samples = []
    for kind, (name, suffix) in enumerate(FOREIGN):
        target = Path(f"{folder}/{name}.{suffix}")
        if name == "llm.c":
            head = np.array([20240520, 1, len(tokens), *([0] * 253)], np.int32).tobytes()
            target.write_bytes(head + tokens.tobytes())
        else:
            convert(prefix, target, to=name, eod=7)
        index = Path(f"{target}.index" if name != "olmo" else f"{folder}/{name}.csv.gz")
        samples.append(
            bytes([kind])
            + joined(target.read_bytes(), index.read_bytes() if index.exists() else b"")
        )
    shutil.rmtree(folder)
    return samples


def _samples() -> list[bytes]:
    import bz2
    import gzip
    import io
    import lzma
    import tarfile
    import zipfile

    import pyarrow
    import pyarrow.parquet
    import zstandard

    lines = b'{"text": "one"}\n\n{"text": "\\u00e9 two"}\n{"text": 1}\nno\n{"a": [], "text": "x"}'
    frame = zstandard.ZstdCompressor().compress
    table = pyarrow.table({"text": ["one", None, "two"]})
    parquet, arrow, tar, zipped = io.BytesIO(), io.BytesIO(), io.BytesIO(), io.BytesIO()
    pyarrow.parquet.write_table(table, parquet, row_group_size=2, store_schema=False)
    with pyarrow.ipc.new_stream(arrow, table.schema) as writer:
        writer.write_table(table)
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in (("a.txt", b"one"), ("b.jsonl", lines)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", "one")
        archive.writestr("b.jsonl", lines)
    contents = (
        *(lines, b'[{"text": "one"},\n {"text": "two"}]', b"one\n\ntwo\r\n"),
        *(frame(lines[:20]) + frame(lines[20:]), gzip.compress(lines), lzma.compress(lines)),
        *(bz2.compress(lines), parquet.getvalue(), arrow.getvalue(), tar.getvalue()),
        *(zipped.getvalue(), b"0000000000000003one0000000000000003two", lines),
    )
    return [bytes([kind]) + content for kind, content in enumerate(contents)]
