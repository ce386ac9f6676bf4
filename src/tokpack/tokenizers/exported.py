"""The files with which ``transformers`` loads a tokenizer that gives the same ids."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokenizerError
from tokpack.tokenizers.folder import CONFIG, NAMED, SETTINGS, Settings
from tokpack.tokenizers.huggingface import build, encode_batch
from tokpack.tokenizers.sentencepiece import PieceKind, SentencePieceTokenizer

if TYPE_CHECKING:
    from tokpack.tokenizers.base import Tokenizer

_SPACE = "\u2581"
_LONGEST_RUN = 70  # repetitions of one character in the texts that are compared


def files_of(
    tokenizer: Tokenizer,
    chat: tuple[Settings | None, dict[str, bytes]],
    max_length: int,
    bos: int | None,
) -> dict[str, bytes]:
    """The files of a tokenizer by their names; ``bos`` is the id that begins a text, or None.

    ``chat`` is what chat_files returns.

    TokenizerError if transformers has no tokenizer that gives the same ids.
    """
    raw: bytes | None = getattr(tokenizer, "raw", None)
    reference: tuple[bytes, ...] = getattr(tokenizer, "reference", (raw,) if raw else ())
    files, kind = {"tokenizer.json": reference[0]} if reference else {}, "PreTrainedTokenizerFast"
    if isinstance(tokenizer, SentencePieceTokenizer):
        files = {"tokenizer.json": _of_sentencepiece(tokenizer)}
    ids = {"bos_token": bos, "eos_token": tokenizer.eod_id}
    names = {key: None if i is None else _text_of(tokenizer, i) for key, i in ids.items()}
    if len(reference) == 2:
        files, kind = {"vocab.json": reference[0], "merges.txt": reference[1]}, "GPT2Tokenizer"
        names["unk_token"] = names["eos_token"]  # by default transformers has another one
    elif not files:
        raise TokenizerError(
            f"transformers has none for {tokenizer.name} ({tokenizer.kind}): encode texts with "
            "tokpack.load_tokenizer"
        )
    settings: dict[str, Any] = {
        "tokenizer_class": kind,
        "model_max_length": max_length,
        **names,
        "add_bos_token": False,
        "add_prefix_space": False,
    }
    own, templates = chat
    if own is not None:
        named = dict.fromkeys(NAMED) | {key: own.named[key]["content"] for key in own.named}
        settings |= {**named, "chat_template": own.config.get("chat_template")}
    config = {key: value for key, value in settings.items() if value is not None}
    config_file = (json.dumps(config, indent=2) + "\n").encode()
    return {**files, **templates, CONFIG: config_file}


def chat_files(tokenizer: Tokenizer) -> tuple[Settings | None, dict[str, bytes]]:
    """The settings of a tokenizer whose folder has a chat template, or None if it has none; and the
    files of templates.
    """
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for folder in {path.parent for path in tokenizer.files.values()}
        for pattern in ("chat_template.jinja", "additional_chat_templates/*.jinja")
        for path in folder.glob(pattern)
    }
    own = Settings({name: path for name, path in tokenizer.files.items() if name in SETTINGS})
    return (own if found or own.config.get("chat_template") else None), found


def _text_of(tokenizer: Tokenizer, token_id: int) -> str:
    if isinstance(tokenizer, SentencePieceTokenizer):  # it decodes a control piece to nothing
        return tokenizer.model.pieces[token_id][0].decode()
    return tokenizer.decode([token_id])


def _of_sentencepiece(tokenizer: SentencePieceTokenizer) -> bytes:
    """The tokenizer.json of a BPE, after a comparison with the model. TokenizerError."""
    model = tokenizer.model
    why = tokenizer.why_not_native
    if model.type != "BPE":
        why = f"it is a {model.type} model, whose ids differ in the Hugging Face library"
    elif model.has_rules:
        why = "it has rules that normalize text, which the Hugging Face library applies otherwise"
    try:
        pieces = [(piece.decode(), PieceKind(kind)) for piece, kind in model.pieces]
    except UnicodeDecodeError:
        pieces, why = [], "it has a piece that is no text"
    if PieceKind.USER_DEFINED in {kind for _, kind in pieces}:
        why = "it has symbols of a user's, which the Hugging Face library finds otherwise"
    if why:
        raise TokenizerError(
            f"transformers has none that gives the ids of the SentencePiece model {tokenizer.name} "
            f"({why}): give its file to sentencepiece, or encode with tokpack.load_tokenizer"
        )
    raw = json.dumps(_definition(tokenizer, pieces), ensure_ascii=False).encode()
    texts = [" ".join(text for text, _ in pieces[i : i + 50]) for i in range(0, len(pieces), 50)]
    texts = [text.replace(_SPACE, " ") for text in texts]
    texts += [f"a{c * n}b{c * n}" for c in " \n\t-=.\u00e9" for n in range(1, _LONGEST_RUN)]
    library = build(raw, special_tokens="text", where=f"tokenizer {tokenizer.name}")
    for text, ids in zip(texts, encode_batch(library, texts), strict=True):
        if ids != tokenizer.encode(text):
            raise TokenizerError(
                f"transformers has none that gives the ids of {tokenizer.name}: they differ for "
                f"{text[:60]!r}; give its file to sentencepiece"
            )
    return raw


def _definition(
    tokenizer: SentencePieceTokenizer, pieces: list[tuple[str, PieceKind]]
) -> dict[str, Any]:
    """The tokenizer.json of a SentencePiece BPE without rules.

    The rank of a piece follows from its score. Among pairs that make the same piece, and pieces
    with equal scores, the one with the lower id comes first.
    """
    model = tokenizer.model
    scores = model.scores
    normal = {text: i for i, (text, kind) in enumerate(pieces) if kind == PieceKind.NORMAL}
    halves = (
        (-scores[i], i, text[:at], text[at:])
        for text, i in normal.items()
        for at in range(1, len(text))
        if text[:at] in normal and text[at:] in normal
    )
    unknown = next((text for text, kind in pieces if kind == PieceKind.UNKNOWN), None)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    ends = {"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""}
    runs = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    steps = [
        *([ends, runs] if model.remove_extra_whitespace else []),
        *([{"type": "Prepend", "prepend": _SPACE}] if model.dummy_prefix else []),
        spaces,
    ]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([strip] if model.dummy_prefix else []),
    ]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = (PieceKind.UNKNOWN, PieceKind.CONTROL)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": text, **flags, "special": True}
            for i, (text, kind) in enumerate(pieces)
            if kind in special
        ],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": model.byte_fallback,
            "ignore_merges": False,
            "vocab": {text: i for i, (text, _) in enumerate(pieces)},
            "merges": [[left, right] for _, _, left, right in sorted(halves)],
        },
    }
