"""A folder means all that its files say, as AutoTokenizer of transformers reads them."""

from __future__ import annotations

import itertools
import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cli_tools import ids, tokpack
from support.rank_files import OWN, save_lines
from support.sentencepiece_tools import trained
from support.tiny_tokenizers import ALPHABET, EOD, added, pair, save, tiny

import tokpack as library
from tokpack import MMapIndexedDataset
from tokpack.cli.main import main
from tokpack.errors import TokenizerError, UsageError
from tokpack.tokenizers import load_tokenizer
from tokpack.tokenizers.load import load_described
from tokpack.tokenizers.patterns import pre_tokenizer_of

if TYPE_CHECKING:
    from pathlib import Path

transformers: Any = pytest.importorskip("transformers")

CONFIG = "tokenizer_config.json"
START, END = "<|im_start|>", "<|im_end|>"
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def token(content: str, **flags: bool) -> dict[str, Any]:
    entry = added(content, 0, **flags)
    del entry["id"]
    return entry


def auto(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def assert_same(folder: Path, *texts: str) -> None:
    """The ids of texts are those of AutoTokenizer, and there are as many ids."""
    ours, theirs = load_tokenizer(folder), auto(folder)
    for text in texts:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
    assert ours.vocab_size == len(theirs)


# Made-up folders.

_CONTENTS = [START, END, EOD, "abc", "b", "<s>", "</s>", "<unk>", "<|padding|>", "\u00e9", "a b"]
_PIECES = [*_CONTENTS, " ", "\n", "e\u0301", "x", "ab", "c", "  ", "<|IM_END|>", "\t"]


def _typed(entry: dict[str, Any]) -> dict[str, Any]:
    return {"__type": "AddedToken", **entry}


def _tokens() -> st.SearchStrategy[dict[str, Any]]:
    flags = st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("lstrip", "rstrip", "normalized", "special", "single_word"), st.booleans()
        ),
    )
    return st.builds(
        lambda content, more: {"content": content, **more}, st.sampled_from(_CONTENTS), flags
    )


def _named() -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.sampled_from(_CONTENTS), _tokens().map(_typed))


_LIST = st.lists(st.one_of(st.sampled_from(_CONTENTS), _tokens().map(_typed)), max_size=3)
_ATTRIBUTES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "mask_token")
# Classes that build what these normalizers and pre_tokenizers say; the first ones build nothing.
_CLASSES: dict[str | None, tuple[Any, Any]] = {
    None: ({"type": "NFC"}, BYTE_LEVEL),
    "PreTrainedTokenizerFast": (None, BYTE_LEVEL),
    "TokenizersBackend": (None, {**BYTE_LEVEL, "add_prefix_space": True}),
    "LlamaTokenizerFast": (None, pre_tokenizer_of("llama3")),
    "GPT2TokenizerFast": (None, BYTE_LEVEL),
    "GPTNeoXTokenizer": ({"type": "NFC"}, BYTE_LEVEL),
}
_BUILDING = ("GPT2TokenizerFast", "GPTNeoXTokenizer")


@st.composite
def folders(draw: st.DrawFn) -> dict[str, Any]:
    """The files beside a tokenizer.json by their names, which may be of a class of _CLASSES."""
    name = draw(st.sampled_from(list(_CLASSES)))
    config: dict[str, Any] = {} if name is None else {"tokenizer_class": name}
    config |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                **dict.fromkeys(_ATTRIBUTES, _named()),
                "added_tokens_decoder": st.dictionaries(
                    st.integers(255, 266).map(str), _tokens(), max_size=4
                ),
                "additional_special_tokens": _LIST,
                "extra_special_tokens": st.one_of(
                    _LIST,
                    st.dictionaries(st.sampled_from(["a_token", "b"]), st.sampled_from(_CONTENTS)),
                ),
                "image_token": st.sampled_from(_CONTENTS),
                "add_prefix_space": st.booleans(),
                "split_special_tokens": st.booleans(),
                "add_bos_token": st.booleans(),
            },
        )
    )
    files = {CONFIG: config}
    if draw(st.booleans()):
        files["special_tokens_map.json"] = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    **dict.fromkeys(_ATTRIBUTES, st.one_of(st.sampled_from(_CONTENTS), _tokens())),
                    "additional_special_tokens": st.lists(st.sampled_from(_CONTENTS), max_size=3),
                },
            )
        )
    if draw(st.booleans()):
        contents = draw(st.lists(st.sampled_from(_CONTENTS), unique=True, max_size=3))
        first = draw(st.integers(256, 262))
        files["added_tokens.json"] = {text: first + i for i, text in enumerate(contents)}
    return files


@settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    files=folders(),
    has_start=st.booleans(),
    texts=st.lists(st.lists(st.sampled_from(_PIECES), max_size=9).map("".join), max_size=5),
)
def test_made_up_folders_give_the_ids_of_transformers(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[str, Any],
    has_start: bool,
    texts: list[str],
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    normalizer, cutter = _CLASSES[files[CONFIG].get("tokenizer_class")]
    base = {**tiny(), "normalizer": normalizer, "pre_tokenizer": cutter}
    listed = files[CONFIG].get("added_tokens_decoder")
    if files[CONFIG].get("tokenizer_class") not in _BUILDING:
        base["added_tokens"] += [added(START, 259)] * has_start
    elif listed is not None:  # it forgets the added tokens that are not in this list
        listed["258"] = token(EOD)
    for name, content in {"tokenizer.json": base, **files}.items():
        save(folder, content, name)
    try:
        theirs = auto(folder)
    except (TypeError, ValueError, AttributeError):
        return  # transformers does not read it either
    ours = load_tokenizer(folder)
    for text in ["ab", *texts]:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
    assert ours.vocab_size == len(theirs)
    # What a manifest says is enough to find it again, the files being where they are.
    assert load_described(ours.describe()).fingerprint == ours.fingerprint


# What a folder says, one by one.


def a_folder(folder: Path, config: dict[str, Any], **files: Any) -> Path:
    """The tiny tokenizer with a config, and other files by their names without .json."""
    folder.mkdir(parents=True, exist_ok=True)
    save(folder, {**tiny(), "pre_tokenizer": BYTE_LEVEL})
    save(folder, config, CONFIG)
    for name, content in files.items():
        save(folder, content, f"{name}.json")
    return folder


def chat_folder(folder: Path) -> Path:
    """One whose turns begin and end with tokens that only its config has."""
    template = "".join(
        [
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}",
            "<|im_end|>\n{% endfor %}",
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        ]
    )
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    return a_folder(
        folder,
        {**config, "added_tokens_decoder": {"259": token(START), "260": token(END)}},
    )


def test_tokens_of_the_config_are_tokens(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path / "chat")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode(f"a{START}ab{END}") == [auto(folder).vocab["a"], 259, 256, 260]
    assert (tokenizer.vocab_size, tokenizer.special_ids[END]) == (261, 260)
    assert load_tokenizer(folder, eod_token=END).eod_id == 260
    (note,) = tokenizer.notes
    assert "2 tokens" in note
    assert f"{START} (259)" in note


_OBJECT = {"content": "\u00e9"}


@pytest.mark.parametrize(
    ("config", "tokens_map"),
    [
        ({"bos_token": "\u00e9"}, {}),
        ({"bos_token": _typed(_OBJECT)}, {}),
        ({"extra_special_tokens": [_typed(_OBJECT)]}, {}),
        ({"additional_special_tokens": [_typed(_OBJECT)]}, {}),
        ({"image_token": "\u00e9"}, {}),
        ({}, {"bos_token": _OBJECT}),
        ({}, {"extra_special_tokens": [_OBJECT]}),
        ({"extra_special_tokens": [_typed(_OBJECT)]}, {"extra_special_tokens": [_OBJECT]}),
        ({"bos_token": _typed(_OBJECT)}, {"additional_special_tokens": ["\u00e9"]}),
    ],
)
def test_objects_and_texts_beside_an_added_tokens_json(
    tmp_path: Path, config: dict[str, Any], tokens_map: dict[str, Any]
) -> None:
    """Only some make its token a special one, which is not looked for in normalized text."""
    save(tmp_path, {**tiny(), "normalizer": {"type": "NFC"}, "pre_tokenizer": BYTE_LEVEL})
    save(tmp_path, config, CONFIG)
    save(tmp_path, {"\u00e9": 257}, "added_tokens.json")
    if tokens_map:
        save(tmp_path, tokens_map, "special_tokens_map.json")
    assert_same(tmp_path, "\u00e9", "e\u0301")


def test_a_file_that_is_named_is_that_file_alone(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path / "chat")
    alone = load_tokenizer(folder / "tokenizer.json")
    assert alone.vocab_size == 259
    assert len(alone.encode(START)) > 1
    (note,) = alone.notes
    assert str(folder) in note
    # Megatron's type means the folder, however it is named; NeoX's means the file.
    whole = load_tokenizer(folder / "tokenizer.json", tokenizer_type="HuggingFaceTokenizer")
    assert whole.encode(START) == [259]
    neox = load_tokenizer(vocab_file=folder / "tokenizer.json", tokenizer_type="HFTokenizer")
    assert neox.vocab_size == 259


def test_commands_say_which_it_is(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path / "chat")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": f"ab{START}"}) + "\n")
    whole = tokpack("encode", "a.jsonl", "-o", "o", "--tokenizer", folder, cwd=tmp_path)
    assert f"{folder} (tokenizer.json, tokenizer_config.json; byte-level BPE)" in whole.stderr
    assert ids(tmp_path / "o") == [256, 259, 258]
    path = folder / "tokenizer.json"
    alone = tokpack("encode", "a.jsonl", "-o", "p", "--tokenizer", path, cwd=tmp_path)
    assert f"{path} (byte-level BPE)" in alone.stderr
    assert len(ids(tmp_path / "p")) > 3


def test_a_dataset_finds_a_folder_again_that_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TOKPACK_TOKENIZER_CACHE", raising=False)
    folder = chat_folder(tmp_path / "chat")
    library.encode(iter([f"ab{END}"]), tmp_path / "o", tokenizer=folder)
    folder.rename(tmp_path / "moved")
    assert MMapIndexedDataset(tmp_path / "o").text(0) == f"ab{END}"
    chat_folder(folder)
    (folder / CONFIG).write_text("{}")
    assert MMapIndexedDataset(tmp_path / "o").text(0) == f"ab{END}"


def test_conversations_have_the_tokens_of_the_config(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path / "chat")
    messages = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "abc"}]
    library.encode(iter([{"messages": messages}]), tmp_path / "o", tokenizer=folder, chat=True)
    expected = auto(folder).apply_chat_template(messages, tokenize=True)["input_ids"]
    assert MMapIndexedDataset(tmp_path / "o").document(0).tolist() == expected
    with pytest.raises(UsageError, match=r"chat/tokenizer\.json"):
        library.encode(
            iter([{"messages": messages}]),
            tmp_path / "p",
            tokenizer=folder / "tokenizer.json",
            chat=True,
        )


def test_the_dtype_counts_tokens_of_the_config(tmp_path: Path) -> None:
    vocab = {**tiny()["model"]["vocab"], **{f"x{i}": i for i in range(259, 65498)}}
    folder = a_folder(tmp_path, {})
    for more, dtype in ((START, "uint16"), (END, "int32")):
        save(folder, {**tiny(vocab=vocab), "pre_tokenizer": BYTE_LEVEL})
        save(folder, {"additional_special_tokens": [START, more]}, CONFIG)
        library.encode(iter(["ab"]), tmp_path / dtype, tokenizer=folder)
        assert MMapIndexedDataset(tmp_path / dtype).dtype == dtype


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"added_tokens_decoder": {"300": token(START)}}, "says that"),
        ({"added_tokens_decoder": {"258": token(EOD, rstrip=True)}}, "other flags"),
        ({"split_special_tokens": True}, "split_special_tokens"),
        ({"auto_map": {"AutoTokenizer": ["x.Own", None]}}, "x.Own"),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}, "prefix_space"),
        ({"tokenizer_class": "Qwen2Tokenizer"}, "cuts text otherwise"),
        ({"tokenizer_class": "GPTNeoXTokenizer"}, "normalizes text otherwise"),
        ({"fast_tokenizer_files": ["tokenizer.4.json"]}, "is not read"),
    ],
)
def test_notes(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    assert any(said in note for note in load_tokenizer(a_folder(tmp_path, config)).notes)


def test_a_plain_folder_has_no_notes_and_is_its_file(tmp_path: Path) -> None:
    config = {"eos_token": EOD, "model_max_length": 1024, "add_prefix_space": False}
    folder = a_folder(tmp_path, config, special_tokens_map={"eos_token": EOD})
    tokenizer = load_tokenizer(folder)
    assert not tokenizer.notes
    assert tokenizer.fingerprint == load_tokenizer(folder / "tokenizer.json").fingerprint


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": [1]},
        {"added_tokens_decoder": {"x": token(START)}},
        {"added_tokens_decoder": {"259": START}},
        {"eos_token": 3},
        {"extra_special_tokens": "<x>"},
        {"additional_special_tokens": [None]},
    ],
)
def test_what_is_no_token_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match=CONFIG):
        load_tokenizer(a_folder(tmp_path, config))


def test_the_normal_form_of_the_file_stays(tmp_path: Path) -> None:
    """Transformers 5.24 drops it for this class."""
    save(tmp_path, {**tiny(), "normalizer": {"type": "NFC"}, "pre_tokenizer": BYTE_LEVEL})
    save(tmp_path, {"tokenizer_class": "GPT2Tokenizer"}, CONFIG)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")
    assert "normalizes" in tokenizer.notes[0]


@pytest.mark.parametrize("lower", [True, False, None])
def test_a_bert_is_cased_as_its_config_says(tmp_path: Path, lower: bool | None) -> None:
    vocab = {t: i for i, t in enumerate(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "a", "A"])}
    definition = {
        **tiny(),
        "added_tokens": [added(text, vocab[text]) for text in list(vocab)[:5]],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lower is False,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }
    save(tmp_path, definition)
    config = {"tokenizer_class": "BertTokenizer"}
    save(tmp_path, config if lower is None else {**config, "do_lower_case": lower}, CONFIG)
    assert_same(tmp_path, "A a")


def test_gpt2_s_files_in_a_folder_are_cut_as_their_class_does(tmp_path: Path) -> None:
    for name in ("GPT2Tokenizer", "Qwen2Tokenizer"):
        folder = tmp_path / name
        folder.mkdir()
        pair(folder, tiny()["model"]["vocab"], "#version: 0.2\na b\nab c\n")
        decoder = {"258": token(EOD), "259": token(START)}
        save(folder, {"tokenizer_class": name, "added_tokens_decoder": decoder}, CONFIG)
        assert_same(folder, f"ab 123{START}\n\n  don't e\u0301 {EOD}")
    save(tmp_path / "GPT2Tokenizer", {"tokenizer_class": "CLIPTokenizer"}, CONFIG)
    with pytest.raises(TokenizerError, match="CLIPTokenizer"):
        load_tokenizer(tmp_path / "GPT2Tokenizer")


@pytest.mark.parametrize("settings", [{}, {CONFIG: {"pad_token": EOD}}])
def test_a_config_of_the_model_names_the_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """Also without a config of the tokenizer; a dataset finds it again without the folder."""
    monkeypatch.setenv("TOKPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TOKPACK_TOKENIZER_CACHE", raising=False)
    folder = tmp_path / "model"
    folder.mkdir()
    vocab = tiny()["model"]["vocab"]
    pair(folder, {**vocab, "12": len(vocab)}, "#version: 0.2\na b\nab c\n1 2\n")
    assert len(load_tokenizer(folder).encode("12")) == 1
    for name, value in {"config.json": {"model_type": "qwen2"}, **settings}.items():
        save(folder, value, name)
    assert_same(folder, f"ab 12 e\u0301 {EOD}")
    library.encode(iter(["12"]), tmp_path / "o", tokenizer=folder)
    folder.rename(tmp_path / "moved")
    assert len(MMapIndexedDataset(tmp_path / "o").tokenizer.encode("12")) == 2


def test_mistral_s_wrong_expression(tmp_path: Path) -> None:
    words = [a + b + c for a, b, c in itertools.product(ALPHABET[:47], repeat=3)]
    vocab = {text: i for i, text in enumerate(dict.fromkeys([*ALPHABET, *words]))}
    assert len(vocab) > 100_000
    model = {**tiny()["model"], "vocab": vocab, "merges": []}
    cutter = pre_tokenizer_of("llama3")
    save(tmp_path, {**tiny(), "added_tokens": [], "pre_tokenizer": cutter, "model": model})
    save(tmp_path, {"model_type": "mistral", "transformers_version": "4.50.0"}, "config.json")
    save(tmp_path, {"tokenizer_class": "PreTrainedTokenizerFast"}, CONFIG)
    (note,) = load_tokenizer(tmp_path).notes
    assert "fix_mistral_regex" in note
    save(tmp_path, {"fix_mistral_regex": True}, CONFIG)
    fixed = load_tokenizer(tmp_path)
    assert not fixed.notes
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path, fix_mistral_regex=True)
    text = "eBay pH 1234 THEm"
    assert fixed.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert theirs.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)[0][0] == "e"
    (tmp_path / "tekken.json").write_text("{}")
    assert any("tekken.json" in note for note in load_tokenizer(tmp_path).notes)


# Ranks, objects, and names of the hub.


def ranks_folder(folder: Path, name: str, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_lines(folder, OWN, name)
    save(folder, config, CONFIG)
    return folder


def kimi(first: int) -> dict[str, Any]:
    """A config as Moonshot writes it."""
    decoder = {str(first): token("[BOS]"), str(first + 1): token("[EOS]")}
    decoder[str(first + 5)] = token("<|im_user|>")
    return {
        "added_tokens_decoder": decoder,
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "tokenizer_class": "TikTokenTokenizer",
    }


def test_ranks_have_the_special_tokens_of_their_config(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    first = len(OWN)
    folder = ranks_folder(tmp_path / "kimi", "tiktoken.model", kimi(first))
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.eod_id, tokenizer.vocab_size) == (first + 1, first + 258)
    assert EOD not in tokenizer.special_ids
    special = {"[BOS]": first, "[EOS]": first + 1, "<|im_user|>": first + 5}
    special |= {f"<|reserved_token_{first + i}|>": first + i for i in (2, 3, 4, *range(6, 258))}
    assert tokenizer.special_ids == special
    expression = pre_tokenizer_of("kimi")["pretokenizers"][0]["pattern"]["Regex"]
    encoding = tiktoken.Encoding(
        "kimi",
        pat_str=expression,
        mergeable_ranks={one: i for i, one in enumerate(OWN)},
        special_tokens=special,
    )
    for text in (
        "the \u4f60\u597d abc123456's THE\n\n  x",
        f"[EOS]a<|im_user|><|reserved_token_{first + 9}|>",
    ):
        assert tokenizer.encode(text) == encoding.encode(text, allowed_special="all")
    assert load_described(tokenizer.describe()).fingerprint == tokenizer.fingerprint
    assert load_tokenizer(folder, eod_token="[BOS]").eod_id == first


def test_glm_s_ranks_are_cut_as_its_code_does(tmp_path: Path) -> None:
    first = len(OWN)
    config = {"added_tokens_decoder": {str(first): token(EOD), str(first + 1): token("<|user|>")}}
    config |= {"tokenizer_class": "ChatGLM4Tokenizer", "eos_token": EOD}
    folder = ranks_folder(tmp_path / "glm", "tokenizer.model", config)
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.eod_id, tokenizer.encode("<|user|>")) == (first, [first + 1])
    with pytest.raises(UsageError, match="pattern"):
        load_tokenizer(folder / "tokenizer.model")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"added_tokens_decoder": {"1": token(START)}}, r"<\|im_start\|> .*\bid 1 .*\b265\b"),
        ({"added_tokens_decoder": {"300": token(START, rstrip=True)}}, r"\brstrip\b"),
        (
            {"added_tokens_decoder": {"300": token(START)}, "eos_token": END},
            r"<\|im_end\|> .*\badded_tokens_decoder\b",
        ),
    ],
)
def test_special_tokens_that_no_ranks_can_have(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    folder = ranks_folder(tmp_path, "tiktoken.model", config)
    with pytest.raises(TokenizerError, match=said):
        load_tokenizer(folder, pattern="cl100k")


def test_a_sentencepiece_model_with_more_tokens_or_a_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained("bpe"))
    save(tmp_path, {"eos_token": "</s>", "pad_token": "<pad>"}, CONFIG)
    assert load_tokenizer(tmp_path).kind == "SentencePiece"
    described = load_tokenizer(tmp_path).describe()
    for more in (
        {"additional_special_tokens": [START]},
        {"tokenizer_class": "XLMRobertaTokenizer"},
    ):
        save(tmp_path, {"eos_token": "</s>", **more}, CONFIG)
        with pytest.raises(TokenizerError, match="save_pretrained"):
            load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path / "tokenizer.model").kind == "SentencePiece"
    # Manifests of datasets that were made when such folders were read.
    config = (tmp_path / CONFIG).read_bytes()
    described["files"][1] |= {"bytes": len(config), "sha256": sha256(config).hexdigest()}
    assert load_described(described).fingerprint == described["sha256"]


@pytest.mark.parametrize("kind", ["transformers", "tokenizers"])
def test_objects_are_tokenizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("TOKPACK_CACHE", str(tmp_path / "cache"))
    theirs = auto(chat_folder(tmp_path / "chat"))
    theirs.add_tokens(["<new>"])
    given = theirs if kind == "transformers" else theirs.backend_tokenizer
    text = f"ab{START}<new>"
    expected = theirs.encode(text)
    assert load_tokenizer(given).encode(text) == expected
    library.encode(iter([text]), tmp_path / "o", tokenizer=given, append_eod=False)
    assert MMapIndexedDataset(tmp_path / "o").document(0).tolist() == expected
    assert MMapIndexedDataset(tmp_path / "o").text(0) == text
    # The same object is the same tokenizer, also where it has been asked to pad meanwhile.
    theirs.backend_tokenizer.enable_padding()
    again = load_tokenizer(given)
    assert again.fingerprint == load_tokenizer(given).fingerprint
    assert again.files["tokenizer.json"].parent.parent.name in str(load_tokenizer(given).files)


def test_objects_that_are_none(tmp_path: Path) -> None:
    for wrong in (3, ["a"], {"a": 1}, object()):
        with pytest.raises(UsageError, match="tokenizer"):
            load_tokenizer(wrong)  # type: ignore[arg-type]


def test_conversations_by_the_template_of_an_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKPACK_CACHE", str(tmp_path / "cache"))
    theirs = auto(chat_folder(tmp_path / "chat"))
    theirs.chat_template = theirs.chat_template.replace("{{ m.content", "x{{ m.content")
    messages = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "abc"}]
    library.encode(iter([{"messages": messages}]), tmp_path / "o", tokenizer=theirs, chat=True)
    expected = theirs.apply_chat_template(messages, tokenize=True)["input_ids"]
    assert MMapIndexedDataset(tmp_path / "o").document(0).tolist() == expected


def test_as_hf_encodes_as_encode_does(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path / "chat")
    for path in (folder, folder / "tokenizer.json"):
        tokenizer = load_tokenizer(path)
        fast = tokenizer.as_hf()
        assert fast.encode(f"ab{START}") == tokenizer.encode(f"ab{START}")
        assert fast.chat_template is not None


def test_the_check_beside_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = chat_folder(tmp_path / "chat")
    command = ["tokenizer", str(folder), "--check", "--sample", "20kB"]
    assert main(command) == 0
    capsys.readouterr()
    config = json.loads((folder / CONFIG).read_text())
    save(folder, {**config, "tokenizer_class": "CLIPTokenizer"}, CONFIG)
    assert main(command) == 1
    assert " there" in capsys.readouterr().out
