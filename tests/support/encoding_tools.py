"""A slow, obviously right twin of ``tokpack.encode``, and real processes to kill."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import resource
import struct
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers

from support import forked

if TYPE_CHECKING:
    from collections.abc import Callable

EOD = "<|endoftext|>"
WORDS = ("the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "by", "with", "as", "it")
VARIANTS = [f"{w}{n}" for w in WORDS for n in (*[""] * 20, *range(10))]

# What the processes of the fault tests run; they make things durable far more often than they
# otherwise would.
DRIVER = """
import json, sys
import tokpack
import tokpack.encoding.run as work
work.SYNC_SECONDS = 0.02
options = json.loads(sys.argv[1])
first = []
def show(progress):
    if not first:
        first.append(progress)
        print("begin", progress.documents, progress.workers, flush=True)
try:
    made = tokpack.encode(options.pop("inputs"), progress=show, **options)
except tokpack.TokpackError as error:
    print(type(error).__name__, error, file=sys.stderr)
    sys.exit(error.exit_code)
manifests = made.values() if isinstance(made, dict) else [made]
print("done", *(manifest.tokens for manifest in manifests), flush=True)
"""


def word_tokenizer(path: Path) -> Path:
    """A tokenizer.json that has no native path, so that a run takes long enough to be killed."""
    names = [EOD, "[UNK]", *WORDS, *(f"{w}{n}" for w in WORDS for n in range(10))]
    model = tokenizers.models.WordLevel({w: i for i, w in enumerate(names)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    # An expression that the core does not know, and that occurs in no text.
    never = tokenizers.Regex("(?>ab|a)\uffff")
    tokenizer.normalizer = tokenizers.normalizers.Replace(never, "")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([EOD])
    tokenizer.save(str(path))
    return path


def byte_tokenizer(path: Path) -> Path:
    """A small byte-level BPE for the native path."""
    texts = [document(random.Random(i), 200) for i in range(50)]
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=600, special_tokens=[EOD], show_progress=False)
    tokenizer.save(str(path))
    return path


def document(rng: random.Random, words: int) -> str:
    """A text that differs from others of the same length, with things that JSON escapes."""
    between = rng.choice((" ", " ", "\n", ' "é" ', " 字\t"))
    return between.join(rng.choices(VARIANTS, k=words))


def documents(count: int, words: int = 120, seed: int = 0) -> list[str]:
    """Documents of many lengths; now and then an empty one."""
    return list(_documents(count, words, seed))


@functools.lru_cache(maxsize=8)
def _documents(count: int, words: int, seed: int) -> tuple[str, ...]:
    rng = random.Random(seed)
    return tuple(
        "" if rng.random() < 0.02 else document(rng, 1 + rng.randrange(2 * words))
        for _ in range(count)
    )


def write_jsonl(path: Path, texts: list[str], **more: str) -> Path:
    """JSON lines with the texts under ``text``."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for number, text in enumerate(texts):
            record = {"id": number, "text": text, **more}
            file.write(json.dumps(record, ensure_ascii=number % 2 == 0) + "\n")
    return path


@functools.cache
def library(definition: str) -> tuple[int, Callable[[str], list[int]]]:
    """EOD and what the library makes of a text, by a tokenizer.json's text; each text once."""
    model = tokenizers.Tokenizer.from_str(definition)
    ids = functools.cache(lambda text: model.encode(text, add_special_tokens=False).ids)
    return model.token_to_id(EOD), ids


def twin(
    tokenizer: Path, texts: list[str], *, dtype: str = "uint16", keep_empty: bool = False
) -> tuple[bytes, bytes]:
    """The .bin and .idx of a dataset, one document after the other."""
    eod, ids_of = library(tokenizer.read_text(encoding="utf-8"))
    rows = [[*ids, eod] if (ids := ids_of(text)) else [] for text in texts]
    doc_idx = [0]
    lengths: list[int] = []
    for row in rows:
        if row:
            lengths.append(len(row))
        if row or keep_empty:
            doc_idx.append(len(lengths))
    return idx_and_bin(rows, lengths, doc_idx, dtype)


def idx_and_bin(
    rows: list[list[int]], lengths: list[int], doc_idx: list[int], dtype: str
) -> tuple[bytes, bytes]:
    """The bytes of a dataset from its tokens, lengths and document index."""
    tokens = np.array([token for row in rows for token in row], dtype=dtype).tobytes()
    size = np.dtype(dtype).itemsize
    pointers = np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))[:-1]]) * size
    code = {"uint16": 8, "int32": 4}[dtype]
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(doc_idx))
    index += np.array(lengths, np.int32).tobytes() + pointers.astype(np.int64).tobytes()
    return tokens, index + np.array(doc_idx, np.int64).tobytes()


def dataset(prefix: Path) -> tuple[bytes, bytes]:
    """The .bin and .idx that are there."""
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


def digests(prefix: Path) -> dict[str, str]:
    """sha256 of the .bin and .idx that are there."""
    both = zip(("bin", "idx"), dataset(prefix), strict=True)
    return {name: hashlib.sha256(data).hexdigest() for name, data in both}


def drive(
    request: dict[str, Any], script: str = "", *words: object
) -> subprocess.CompletedProcess[str]:
    """What a process says and ends with that encodes a request, changed by a script before."""
    command = ["-c", script + DRIVER, json.dumps(request), *words]
    return forked.run(command, capture_output=True, text=True, check=False, timeout=120)


def start(inputs: list[Path] | Path, output: Path, **options: Any) -> subprocess.Popen[str]:
    """A process of its own session that encodes."""
    names = [str(p) for p in inputs] if isinstance(inputs, list) else str(inputs)
    text = json.dumps({"inputs": names, "output": str(output), **options}, default=str)
    return forked.Process(
        ["-c", DRIVER, text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a process that must succeed; what it said."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def children(pid: int) -> list[int]:
    """Worker processes of a process."""
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def processor_seconds(pid: int) -> float:
    """What a process, its children, and those that it has waited for have used so far."""
    ticks = 0
    for each in (pid, *children(pid)):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def used_by_children() -> float:
    """Processor seconds of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_until(condition: Any, seconds: float = 100.0) -> Any:
    """Poll until the condition holds; its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
    return value


def wait_for_end(pids: list[int], seconds: float = 100.0) -> None:
    """Wait until none of the processes lives."""
    wait_until(lambda: not any(is_alive(pid) for pid in pids), seconds)


def is_alive(pid: int) -> bool:
    """Whether a process runs, a zombie not counted."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def pieces(output: Path) -> list[dict[str, Any]]:
    """The pieces that the journal of the work folder has, each as it was last."""
    try:
        lines = Path(f"{output}.unfinished/journal.jsonl").read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    entries = [json.loads(line[16:]) for line in lines]
    found = [entry["piece"] for entry in entries if "piece" in entry]
    return list({(piece["number"], piece["segment"]): piece for piece in found}.values())


def nothing_whole(output: Path) -> None:
    """Assert that nothing there could be taken for a dataset."""
    left = {path.name for path in output.parent.glob(f"{output.name}*")}
    assert left <= {f"{output.name}.unfinished"}, left
