"""Published files of ranks: what they do not say themselves, and where tiktoken keeps them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokpack.errors import TokenizerError
from tokpack.tokenizers import hub
from tokpack.tokenizers.gpt2_files import read_bytes

if TYPE_CHECKING:
    from tokpack.tokenizers.base import SpecialMode
    from tokpack.tokenizers.spec import NormalForm

_URL = "https://openaipublic.blob.core.windows.net/encodings/"
_END = "<|endoftext|>"


@dataclass(frozen=True)
class KnownVocabulary:
    """A vocabulary of ranks that is known by the sha256 of its file.

    ``special`` has the ids of special tokens; ``mode`` is what becomes of one inside a text in the
    vocabulary's own tools. ``file`` is the name of tiktoken's file, "" where tiktoken has none.
    """

    name: str
    sha256: str
    pattern: str
    special: dict[str, int]
    file: str = ""
    form: NormalForm = ""
    mode: SpecialMode = "text"


_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_O200K = {_END: 199999, "<|endofprompt|>": 200018}
_HARMONY = {
    2: "return",
    3: "constrain",
    5: "channel",
    6: "start",
    7: "end",
    8: "message",
    12: "call",
}
_P50K_SHA = "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"
_O200K_SHA = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
_LLAMA3 = (
    *("<|begin_of_text|>", "<|end_of_text|>"),
    *("<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
    *("<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|image|>"),
    *(f"<|reserved_special_token_{i}|>" for i in range(2, 246)),
)
_LLAMA4_TEXT = (
    *("<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>", "<|step|>"),
    *(f"<|text_post_train_reserved_special_token_{i}|>" for i in range(6)),
    *("<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"),
    *(f"<|text_post_train_reserved_special_token_{i}|>" for i in range(8, 69)),
)
_LLAMA4_VISION = (
    *("<|image_start|>", "<|image_end|>"),
    *(f"<|vision_reserved_special_token_{i}|>" for i in range(2)),
    *("<|tile_x_separator|>", "<|tile_y_separator|>"),
    *(f"<|vision_reserved_special_token_{i}|>" for i in range(2, 6)),
    *("<|image|>", "<|vision_reserved_special_token_6|>", "<|patch|>"),
    *(f"<|vision_reserved_special_token_{i}|>" for i in range(7, 1048)),
)
_LLAMA4 = (
    *("<|begin_of_text|>", "<|end_of_text|>", *_FIM),
    *(*_LLAMA4_TEXT, *_LLAMA4_VISION),
    *(f"<|reasoning_reserved_special_token_{i}|>" for i in range(8)),
    *("<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"),
    *(f"<|reserved_special_token_{i}|>" for i in range(904)),
)
_QWEN = (_END, "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)))

# The first of those with the same file is what the file is when it has no name.
_PUBLISHED = (
    KnownVocabulary(
        "r50k_base",
        "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
        "gpt2",
        {_END: 50256},
        "r50k_base.tiktoken",
    ),
    KnownVocabulary("p50k_base", _P50K_SHA, "gpt2", {_END: 50256}, "p50k_base.tiktoken"),
    KnownVocabulary(
        "p50k_edit",
        _P50K_SHA,
        "gpt2",
        {_END: 50256, **{token: 50281 + i for i, token in enumerate(_FIM)}},
        "p50k_base.tiktoken",
    ),
    KnownVocabulary(
        "cl100k_base",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        "cl100k",
        {
            _END: 100257,
            **{token: 100258 + i for i, token in enumerate(_FIM)},
            "<|endofprompt|>": 100276,
        },
        "cl100k_base.tiktoken",
    ),
    KnownVocabulary("o200k_base", _O200K_SHA, "o200k", _O200K, "o200k_base.tiktoken"),
    KnownVocabulary(
        "o200k_harmony",
        _O200K_SHA,
        "o200k",
        {
            **{f"<|reserved_{i}|>": i for i in range(200000, 201088) if i - 200000 not in _HARMONY},
            **{f"<|{token}|>": 200000 + i for i, token in _HARMONY.items()},
            "<|startoftext|>": 199998,
            **_O200K,
        },
        "o200k_base.tiktoken",
    ),
    KnownVocabulary(
        "Llama 3",
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
        "llama3",
        {token: 128000 + i for i, token in enumerate(_LLAMA3)},
    ),
    KnownVocabulary(
        "Llama 4",
        "d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed",
        "o200k",
        {token: 200000 + i for i, token in enumerate(_LLAMA4)},
    ),
    KnownVocabulary(
        "Qwen",
        "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
        "qwen2",
        {token: 151643 + i for i, token in enumerate(_QWEN)},
        form="NFC",
        mode="encode",
    ),
)


def by_name(name: str) -> KnownVocabulary | None:
    """The encoding that tiktoken has under a name."""
    return next(
        (encoding for encoding in _PUBLISHED if encoding.file and encoding.name == name.lower()),
        None,
    )


def by_content(raw: bytes) -> KnownVocabulary | None:
    """What a file is known to be."""
    sha256 = hashlib.sha256(raw).hexdigest()
    return next((encoding for encoding in _PUBLISHED if encoding.sha256 == sha256), None)


def names() -> list[str]:
    """The names that ``by_name`` knows."""
    return [encoding.name for encoding in _PUBLISHED if encoding.file]


def read_published(encoding: KnownVocabulary) -> tuple[Path, bytes]:
    """The file of an encoding of tiktoken's: from tokpack's cache, or from tiktoken's own.

    TokenizerError where neither has it, which says where to put it, and where it is another file.
    """
    path_here = hub.cache_folder(encoding.name) / encoding.file
    for path in (path_here, _cache_of_tiktoken(encoding.file)):
        if not path.is_file():
            continue
        raw = read_bytes(path)
        sha256 = hashlib.sha256(raw).hexdigest()
        if sha256 == encoding.sha256:
            return path, raw
        raise TokenizerError(
            f"{path}: not the file of the tokenizer {encoding.name} (sha256 {sha256}, expected "
            f"{encoding.sha256}): replace it by {_URL}{encoding.file}"
        )
    raise TokenizerError(
        f"tokenizer {encoding.name} is not on this machine: put {_URL}{encoding.file} into "
        f"{path_here.parent}, or give the path of {encoding.file} with --tokenizer; tiktoken's "
        "cache is read too (TIKTOKEN_CACHE_DIR)"
    )


def _cache_of_tiktoken(file: str) -> Path:
    """Where the package tiktoken keeps a file that it has downloaded."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder is None:
        folder = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    name = hashlib.sha1((_URL + file).encode(), usedforsecurity=False).hexdigest()
    return Path(folder) / name
