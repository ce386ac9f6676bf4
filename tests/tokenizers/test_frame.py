"""What frames a document: EOD and BOS by name and by id, and what a post-processor adds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.tiny_tokenizers import EOD, OF_THE_LIBRARY, added, save, tiny
from support.tokenizers_twin import block, rows
from tokenizers import Tokenizer

from tokpack.errors import TokenizerError
from tokpack.tokenizers import Frame, frame_of, load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

BOS, SEP, TURN = "<|begin_of_text|>", "[SEP]", "<|turn|>"
TEXTS = ["abc ab", "", f"a{TURN}b", "c"]


def framed(post_processor: object = None, **model: Any) -> dict[str, Any]:
    """A tokenizer of ids 0 to 257, EOD 258, BOS 259, SEP 260, and another token 261."""
    definition = tiny(**model)
    specials = [added(name, 259 + n) for n, name in enumerate((BOS, SEP, TURN))]
    definition["added_tokens"] += specials
    return {**definition, "post_processor": post_processor}


def template(*names: str) -> dict[str, Any]:
    ids = {BOS: 259, SEP: 260, TURN: 261, EOD: 258}
    pieces = [
        {"Sequence": {"id": "A", "type_id": 0}}
        if name == "$A"
        else {"SpecialToken": {"id": name, "type_id": 0}}
        for name in names
    ]
    tokens = {n: {"id": n, "ids": [ids[n]], "tokens": [n]} for n in names if n in ids}
    return {
        "type": "TemplateProcessing",
        "single": pieces,
        "pair": [*pieces, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": tokens,
    }


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
PAIR = {"sep": [SEP, 260], "cls": [BOS, 259]}
POST_PROCESSORS: list[tuple[object, Frame]] = [
    (None, Frame()),
    (BYTES, Frame()),
    (template(BOS, "$A"), Frame((259,))),
    (template(BOS, TURN, "$A", SEP), Frame((259, 261), (260,))),
    ({"type": "BertProcessing", **PAIR}, Frame((259,), (260,))),
    (
        {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": True, **PAIR},
        Frame((259,), (260,)),
    ),
    ({"type": "Sequence", "processors": [BYTES, template("$A", EOD)]}, Frame((), (258,))),
]


@pytest.mark.parametrize(("post_processor", "expected"), POST_PROCESSORS)
@pytest.mark.parametrize("native", [True, False])
def test_what_a_post_processor_adds(
    tmp_path: Path, post_processor: object, expected: Frame, native: bool
) -> None:
    definition = framed(post_processor)
    if not native:
        definition["normalizer"] = OF_THE_LIBRARY
    tokenizer = load_tokenizer(save(tmp_path, definition))
    assert tokenizer.native == native
    frame = frame_of(tokenizer, append_eod=False, add_special_tokens=True)
    assert frame == expected
    encoded = tokenizer.encoder(dtype="uint16", frame=frame).encode(*block(TEXTS))
    library = Tokenizer.from_str(json.dumps(definition))
    assert rows(encoded) == [library.encode(text).ids if text else [] for text in TEXTS]


def test_a_post_processor_that_does_more_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, framed(template("$A", SEP, "$A")))
    with pytest.raises(TokenizerError, match=r"\bpost_processor\b.*\badd_special_tokens=True"):
        frame_of(load_tokenizer(path), append_eod=False, add_special_tokens=True)


def test_nothing_is_added_twice(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tmp_path, framed(template(BOS, "$A", EOD))))
    for prepend_bos in (False, True):
        for append_eod in (False, True):
            frame = frame_of(
                tokenizer,
                append_eod=append_eod,
                prepend_bos=prepend_bos,
                add_special_tokens=True,
            )
            assert frame == Frame((259,), (258,))
    both = frame_of(tokenizer, append_eod=True, bos_token=TURN, add_special_tokens=True)
    assert both == Frame((261, 259), (258,))


def test_tokens_by_name_and_by_id(tmp_path: Path) -> None:
    path = save(tmp_path, framed())
    for given in (SEP, "260", 260):
        assert load_tokenizer(path, eod_token=given).eod_id == 260
    assert load_tokenizer(path, eod_token="ab").eod_id == 256
    tokenizer = load_tokenizer(path)
    assert frame_of(tokenizer, append_eod=True, prepend_bos=True) == Frame((259,), (258,))
    assert frame_of(tokenizer, append_eod=False, bos_token="258") == Frame((258,))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("<eos>", r"'<eos>' .*\bEOD: .*\b5 ids; .*\beod_token\b"),
        ("[SEP", r"'\[SEP' .* \[SEP\] \(260\)$"),
        ("262", r"\btoken 262: .*\b262, .*\bEOD$"),
        ("1" * 5000, r"'1{99}.*\bEOD\b"),
        ("", r"'' .*\bEOD; .*\beod_token\b"),
        ("\udcff", r"'\\udcff' .*\bEOD\b"),  # not UTF-8 on the command line
    ],
)
def test_an_eod_that_is_no_token(tmp_path: Path, given: str, said: str) -> None:
    path = save(tmp_path, framed())
    with pytest.raises(TokenizerError, match=said) as caught:
        load_tokenizer(path, eod_token=given)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_known_names(tmp_path: Path) -> None:
    definition = tiny()
    definition["added_tokens"] = [added("<stop>", 258)]
    del definition["model"]["vocab"][EOD]
    tokenizer = load_tokenizer(save(tmp_path, definition))
    for request, flags in (
        ({"append_eod": True}, r"eod_token, .*, such as <stop> \(258\), or .* append_eod=False"),
        ({"append_eod": False, "prepend_bos": True}, r"bos_token, .*, such as <stop> \(258\)"),
    ):
        with pytest.raises(TokenizerError, match=flags):
            frame_of(tokenizer, **request)
    known = load_tokenizer(save(tmp_path, definition), eod_token="<stop>")
    assert frame_of(known, append_eod=True, bos_token=known.eod_id) == Frame((258,), (258,))


def test_a_vocabulary_of_words(tmp_path: Path) -> None:
    path = save(tmp_path, {"<unk>": 0, "stop": 1, "go": 2}, "vocab.json")
    tokenizer = load_tokenizer(vocab_file=path, tokenizer_type="Whitespace", eod_token="stop")
    frame = frame_of(tokenizer, append_eod=True, bos_token="go", add_special_tokens=True)
    encoded = tokenizer.encoder(dtype="uint16", frame=frame).encode(*block(["a", " ", "go"]))
    assert rows(encoded) == [[2, 0, 1], [], [2, 2, 1]]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"add_bos_token": True}, Frame((1,), ())),
        ({"add_bos_token": True, "add_eos_token": True}, Frame((1,), (2,))),
        ({"add_bos_token": False, "add_eos_token": False}, Frame()),
        ({"bos_token": "<s>"}, None),
        (None, None),
    ],
)
def test_a_sentencepiece_model(
    tmp_path: Path, flags: dict[str, Any] | None, expected: Frame | None, data: Path
) -> None:
    pytest.importorskip("sentencepiece")
    raw = (data / "tokenizers" / "modern" / "mistral-v1.model").read_bytes()
    (tmp_path / "tokenizer.model").write_bytes(raw)
    if flags is not None:
        save(tmp_path, flags, "tokenizer_config.json")
    for path in (tmp_path, tmp_path / "tokenizer.model"):
        tokenizer = load_tokenizer(path)
        assert frame_of(tokenizer, append_eod=True, prepend_bos=True) == Frame((1,), (2,))
        if expected is None:
            with pytest.raises(TokenizerError, match="use prepend_bos=True and append_eod=True"):
                frame_of(tokenizer, append_eod=False, add_special_tokens=True)
        else:
            found = frame_of(tokenizer, append_eod=False, add_special_tokens=True)
            assert found == expected
