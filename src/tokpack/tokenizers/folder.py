"""The folder of a tokenizer: which files define it, and what the files beside these change.

A tokenizer.json is not all. ``tokenizer_config.json``, and in older folders also
``special_tokens_map.json`` and ``added_tokens.json``, name more tokens, and other flags of known
ones. They are read as transformers 5 reads them (AutoTokenizer of 5.24): the library is given the
same tokens in the same order, so they get the same ids. Notes tell where transformers 4 (4.57) has
others. If transformers 5 builds another tokenizer than tokenizer.json describes, the file is
followed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import TokenizerError
from tokpack.quantities import counted
from tokpack.storage.disk import parse_json, read_object
from tokpack.tokenizers import patterns
from tokpack.tokenizers.definition import NotNativeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tokpack.tokenizers.base import Tokenizer
    from tokpack.tokenizers.definition import NormalForm

CONFIG = "tokenizer_config.json"
_TOKENS_MAP, _ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
_MODEL = "config.json"  # of the model: its type names the class if nothing else does
_OF_FOLDER = (CONFIG, _TOKENS_MAP, _ADDED_TOKENS)
SETTINGS = (*_OF_FOLDER, _MODEL)
JSON_FILES = ("tokenizer.json", "20B_tokenizer.json")
GPT2_FILES = (
    ("vocab.json", "merges.txt"),
    ("gpt2-vocab.json", "gpt2-merges.txt"),
    ("encoder.json", "vocab.bpe"),
)
MODEL_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json")
_PATTERNS = ("tokenizer.model.v*", "*.tiktoken", "tiktoken.model")  # if a folder has just one

# The attributes of transformers for special tokens, in the order in which it adds their tokens.
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_IS_TEXT = "is_text"  # marks a token that is given only by its text, until its flags are known
_SHOWN = 4  # tokens in a note

_EOT = "<|endoftext|>"
_ENDS_TEXT = {"bos_token": _EOT, "eos_token": _EOT, "unk_token": _EOT}
_QWEN = {"eos_token": _EOT, "unk_token": _EOT, "pad_token": _EOT}
_SENTENCE = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_ROBERTA = {
    **_SENTENCE,
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}


@dataclass(frozen=True)
class _Class:
    """What a tokenizer class of transformers 5 does, whatever tokenizer.json says.

    ``tokens`` are its special tokens if the config names no others. ``prefix_space`` is its default
    of add_prefix_space, None if it does not change that of a ByteLevel. ``form`` is the normal form
    and ``pattern`` the pattern that it builds, "" if that is not compared.
    """

    tokens: Mapping[str, str]
    prefix_space: bool | None = None
    form: NormalForm = ""
    pattern: str = ""


_CLASSES = {
    "BertTokenizer": _Class(
        {
            "unk_token": "[UNK]",
            "sep_token": "[SEP]",
            "pad_token": "[PAD]",
            "cls_token": "[CLS]",
            "mask_token": "[MASK]",
        }
    ),
    "CodeGenTokenizer": _Class(_ENDS_TEXT, False, "", "gpt2"),
    "CohereTokenizer": _Class(
        {
            "unk_token": "<UNK>",
            "bos_token": "<BOS_TOKEN>",
            "pad_token": "<PAD>",
            "eos_token": "<|END_OF_TURN_TOKEN|>",
            "cls_token": "<CLS>",
            "sep_token": "<SEP>",
            "mask_token": "<MASK_TOKEN>",
        },
        False,
    ),
    "GPT2Tokenizer": _Class(_ENDS_TEXT, False, "", "gpt2"),
    "GPTNeoXTokenizer": _Class({**_ENDS_TEXT, "pad_token": "<|padding|>"}, False, "NFC", "gpt2"),
    "GemmaTokenizer": _Class(
        {
            "unk_token": "<unk>",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        }
    ),
    "LlamaTokenizer": _Class(_SENTENCE),
    "Qwen2Tokenizer": _Class(_QWEN, False, "NFC", "qwen2"),
    "Qwen3_5Tokenizer": _Class(_QWEN, False, "NFC", "qwen35"),
    "RobertaTokenizer": _Class(_ROBERTA, False, "", "gpt2"),
    "T5Tokenizer": _Class({"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}),
    "XLMRobertaTokenizer": _Class(_ROBERTA),
}
_BERTS = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_OF_BERT = {  # keys of the configs: flags of a BertNormalizer, and their defaults
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
_NOT_READ = ("fast_tokenizer_files", "never_split", "sp_model_kwargs")  # keys that change ids
# The pattern with which fix_mistral_regex replaces the wrong one.
_MISTRAL_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MISTRAL_LEAST = 100_000  # ids; with a smaller vocabulary the pattern is right
_MISTRAL_TYPES = ("mistral", "mistral3", "voxtral", "ministral", "pixtral")

Token = dict[str, Any]  # an added token in the form of a tokenizer.json, without its id


@dataclass(frozen=True)
class TokenizerFolder:
    """The files of one tokenizer.

    ``main`` defines it: a tokenizer.json, GPT-2's two files, a SentencePiece model, or ranks.
    ``settings`` are those of SETTINGS; a file that is named by itself has none. Both are by the
    names of the files in the folder, which a copy in a cache does not keep.
    """

    main: Mapping[str, Path]
    settings: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def alone(cls, *files: Path) -> TokenizerFolder:
        """The files of a tokenizer without the others of their folder."""
        return cls({path.name: path for path in files})


def find(folder: Path) -> TokenizerFolder | None:
    """The tokenizer in a folder, or None if no file has the name of one."""
    choices = (*((file,) for file in JSON_FILES), *GPT2_FILES, *((file,) for file in MODEL_FILES))
    for files in choices:
        paths = tuple(folder / file for file in files)
        if all(path.is_file() for path in paths):
            settings = settings_in(folder)
            if len(paths) == 2 and (folder / _MODEL).is_file():
                of_model = {**settings, _MODEL: folder / _MODEL}
                if Settings(of_model).class_name != Settings(settings).class_name:
                    settings = of_model
            return replace(TokenizerFolder.alone(*paths), settings=settings)
    for pattern in _PATTERNS:
        models = [path for path in folder.glob(pattern) if path.is_file()]
        if len(models) == 1:
            return replace(TokenizerFolder.alone(*models), settings=settings_in(folder))
    return None


def settings_in(folder: Path) -> dict[str, Path]:
    """The files of a folder that change its tokenizer, by their names."""
    return {name: folder / name for name in _OF_FOLDER if (folder / name).is_file()}


class Settings:
    """The content of the files beside a tokenizer's definition. TokenizerError if one is malformed.

    ``listed`` are the tokens that are given with an id, ascending; ``named`` those of NAMED and of
    other keys that end in _token; ``extra`` further ones. ``normalized`` of a token may be None:
    then it depends on whether the token becomes a special one.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = dict(files)
        self.config = self._read(CONFIG)
        # A config.json is among the files if it may name the class: that of Qwen's models.
        of_model = str(self._read(_MODEL).get("model_type"))
        is_new = of_model.startswith("qwen3_5")
        qwen = "Qwen3_5Tokenizer" if is_new else "Qwen2Tokenizer"
        named = self.config.get("tokenizer_class") or (qwen if of_model.startswith("qwen") else "")
        self.class_name = str(named).removesuffix("Fast")
        self._is_older = "added_tokens_decoder" not in self.config
        # The folder of an older version has a map, which takes precedence over its config.
        older = self._read(_TOKENS_MAP) if self._is_older else {}
        values = {**self.config, **older}
        self._unset = {key for key in NAMED if key in values and values[key] is None}
        self.named = {
            key: self._token(values[key], key) for key in NAMED if values.get(key) is not None
        }
        keyed, extra = self._further(older)
        self.extra = [self._token(one, "extra_special_tokens") for one in extra]
        if self._is_older:
            self.listed = self._older_list(older)
        else:
            self.listed = self._listed(self.config["added_tokens_decoder"])
        by_text = {token["content"]: token for _, token in self.listed}
        for key, token in self.named.items():
            self.named[key] = by_text.get(token["content"], token)
        self.named |= {key: self._token(one, key) for key, one in keyed.items()}

    @property
    def where(self) -> str:
        """The path of the config, or of the file that replaces it."""
        return str(self.files.get(CONFIG) or next(iter(self.files.values()), CONFIG))

    @property
    def eos(self) -> str | None:
        """The text of the eos_token."""
        token = self.named.get("eos_token")
        return None if token is None else str(token["content"])

    def texts(self) -> list[str]:
        """The texts of all tokens that the files name."""
        tokens = (*(token for _, token in self.listed), *self.named.values(), *self.extra)
        return list(dict.fromkeys(str(token["content"]) for token in tokens))

    def tokens(self, added: Mapping[int, Token], *, byte_level: bool) -> list[Token]:
        """The tokens that transformers gives the library besides those ``added``, in order.

        Some give new flags to an added one. With ``byte_level`` the class cannot be a
        LlamaTokenizer, whatever the config says.
        """
        current = {token["content"]: token for token in added.values()}
        of_class = _CLASSES[self.class_name].tokens if self.class_name in _CLASSES else {}
        if byte_level and self.class_name == "LlamaTokenizer":
            of_class = {}
        named = {key: _special(text) for key, text in of_class.items() if key not in self._unset}
        named |= self.named
        # A token of an added_tokens.json is left out if tokenizer.json has another with its id.
        listed = [t for i, t in self.listed if not (self._is_older and i in added)]
        tokens = [token for token in listed if _whole(token) != current.get(token["content"])]
        there = {*current, *(token["content"] for token in tokens)}
        order = (*NAMED, *(key for key in named if key not in NAMED))
        for token in (*(named[key] for key in order if key in named), *self.extra):
            # Equal tokens are one in transformers. A text, marked by _IS_TEXT, equals no object.
            if token["content"] not in there and token not in tokens:
                tokens.append(token)
        special = {token["content"] for token in named.values()}
        return [_whole(token, special=token["content"] in special) for token in tokens]

    def _read(self, name: str) -> dict[str, Any]:
        path = self.files.get(name)
        if path is None:
            return {}
        return read_object(path, missing=TokenizerError, wrong=TokenizerError)

    def _further(self, older: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        """The tokens of keys that are not in NAMED: of those that end in _token, and those in a
        list.
        """
        extra, additional = "extra_special_tokens", "additional_special_tokens"
        values = dict(self.config)
        if additional in values and not values.get(extra):
            values[extra] = values.pop(additional)  # its name in transformers 4
        keyed = {key: text for key, text in values.items() if _is_key(key) and _is_text(text)}
        if isinstance(values.get(extra), dict):
            keyed |= values.pop(extra)
        for key, value in older.items():
            is_added = (
                key == extra and isinstance(value, list) and isinstance(values.get(key), list)
            )
            values[key] = [*values[key], *value] if is_added else value
        if isinstance(values.get(extra), dict):
            keyed |= values.pop(extra)
        further = {key: one for key, one in values.items() if _is_key(key) and _is_token(one)}
        listed = values.get(extra if extra in values else additional) or []
        if not isinstance(listed, list):
            raise self._wrong(extra, listed)
        return {**further, **keyed}, listed

    def _listed(self, values: Any) -> list[tuple[int, Token]]:
        """The tokens of an added_tokens_decoder."""
        if not isinstance(values, dict):
            raise self._wrong("added_tokens_decoder", values)
        listed = []
        for key, value in values.items():
            if not (key.isascii() and key.isdecimal() and isinstance(value, dict)):
                raise self._wrong("added_tokens_decoder", {key: value})
            listed.append((int(key), self._token(value, "added_tokens_decoder")))
        return sorted(listed, key=lambda one: one[0])

    def _older_list(self, older: Mapping[str, Any]) -> list[tuple[int, Token]]:
        """The tokens of an added_tokens.json, special ones if another key has them as a text, too.

        An object counts if it is in a special_tokens_map.json: transformers reads those of the
        config after it has compared the texts.
        """
        special = {t["content"] for k, t in self.named.items() if _IS_TEXT in t or k in older}
        if not older.get("additional_special_tokens"):  # the value is not used
            special |= {t["content"] for t in self.extra if _IS_TEXT in t}
            if isinstance(further := older.get("extra_special_tokens"), list):
                special |= {self._token(one, CONFIG)["content"] for one in further}
        listed = []
        for text, number in self._read(_ADDED_TOKENS).items():
            if type(number) is not int or number < 0:
                raise self._wrong(_ADDED_TOKENS, {text: number})
            is_special = text in special
            token = {"content": text, "special": is_special, "normalized": not is_special}
            listed.append((number, self._token(token, _ADDED_TOKENS)))
        return sorted(listed, key=lambda one: one[0])

    def _token(self, value: Any, key: str) -> Token:
        """A token of a config, given by its text, or by an object with its flags."""
        if not _is_token(value):
            raise self._wrong(key, value)
        if isinstance(value, str):
            return {**_special(value), _IS_TEXT: True}
        token = {**_special(value["content"]), "special": False, "normalized": None}
        return token | {flag: bool(value[flag]) for flag in _FLAGS if value.get(flag) is not None}

    def _wrong(self, key: str, value: Any) -> TokenizerError:
        return TokenizerError(f"{self.where}: {key} is {brief(value)}, which is no token")


def _is_key(key: str) -> bool:
    """Whether a key that is not in NAMED names a token, such as image_token."""
    return key.endswith("_token") and key not in NAMED


def _is_token(value: Any) -> bool:
    """Whether a value has the form of a token: a text, or an object with its content."""
    return _is_text(value.get("content") if isinstance(value, dict) else value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _whole(token: Token, *, special: bool = False) -> Token:
    """A token with all flags; one that is named is always ``special``."""
    special = token["special"] or special
    normalized = not special if token["normalized"] is None else token["normalized"]
    whole = {**token, "special": special, "normalized": normalized}
    whole.pop(_IS_TEXT, None)
    return whole


def _special(text: str) -> Token:
    return {"content": text, **dict.fromkeys(_FLAGS, False), "special": True}


@dataclass(frozen=True)
class Changes:
    """The changes that settings make in a tokenizer.json.

    ``tokens`` are added, or get new flags, in this order. ``prefix_space`` is the new
    add_prefix_space of its ByteLevel, ``bert`` has new flags of its BertNormalizer, ``pattern`` is
    the expression that replaces its first one; None and empty mean no change.
    """

    tokens: tuple[Token, ...] = ()
    prefix_space: bool | None = None
    bert: Mapping[str, Any] = field(default_factory=dict)
    pattern: str | None = None

    def __bool__(self) -> bool:
        return self != Changes()

    def apply(self, definition: dict[str, Any]) -> dict[str, Any]:
        """The changed definition. Malformed parts are kept: its reader will report them."""
        changed = {**definition}
        model = definition.get("model")
        if self.tokens and isinstance(model, dict):
            changed["added_tokens"] = _with_tokens(
                definition.get("added_tokens") or [], model.get("vocab"), self.tokens
            )
        if self.prefix_space is not None:
            changed["pre_tokenizer"] = _with_prefix(definition["pre_tokenizer"], self.prefix_space)
        if self.bert:
            changed["normalizer"] = {**definition["normalizer"], **self.bert}
        if self.pattern is not None:
            changed["pre_tokenizer"] = _with_pattern(definition["pre_tokenizer"], self.pattern)
        return changed


def _with_tokens(added: Any, vocab: Any, tokens: Sequence[Token]) -> Any:
    """Added tokens and more, each with the id that the library gives it."""
    if not isinstance(added, list) or not all(map(_has_id, added)):
        return added
    if isinstance(vocab, list):  # for a Unigram: texts with scores
        ids = {str(one[0]): i for i, one in enumerate(vocab) if isinstance(one, list) and one}
    else:
        ids = {**vocab} if isinstance(vocab, dict) else {}
    size = len(ids)
    result = {token["content"]: token for token in added}
    most = max((token["id"] for token in added), default=-1)
    for token in tokens:
        text = token["content"]
        new = ids.get(text, max(most + 1, size))
        number = result[text]["id"] if text in result else new
        most = max(most, number)
        # In the library a token that was special once stays special.
        special = token["special"] or bool(result.get(text, {}).get("special"))
        result[text] = {"id": number, **token, "special": special}
    return list(result.values())


def _has_id(token: Any) -> bool:
    return _is_token(token) and isinstance(token, dict) and type(token.get("id")) is int


def _with_prefix(node: dict[str, Any], prefix_space: bool) -> dict[str, Any]:
    """A pre_tokenizer whose ByteLevel, its only step or one of a Sequence, has this prefix."""
    if node.get("type") == "ByteLevel":
        return {**node, "add_prefix_space": prefix_space}
    steps = node.get("pretokenizers")
    if not isinstance(steps, list):
        return node
    return {**node, "pretokenizers": [_with_prefix(step, prefix_space) for step in steps]}


def _with_pattern(node: dict[str, Any], pattern: str) -> dict[str, Any]:
    """A pre_tokenizer whose first step cuts by another expression, as Mistral's should."""
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    if node.get("type") == "Sequence":
        return {**node, "pretokenizers": [split, *node["pretokenizers"][1:]]}
    if node.get("type") == "Metaspace":
        node = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        }
    return {"type": "Sequence", "pretokenizers": [split, node]}


class Definition:
    """A tokenizer.json with the changes of the files beside it.

    ``key`` identifies it. With changes, ``read()`` and ``raw`` take a second, so they are made only
    when they are needed.
    """

    def __init__(self, raw: bytes, path: Path, changes: Changes = Changes()) -> None:
        self._raw, self._path, self._changes = raw, path, changes
        self.key = raw
        if changes:
            self.key = b"%b\n%b" % (repr(changes).encode("utf-8", "surrogatepass"), raw)

    def read(self) -> Any:
        """The value of the JSON. TokenizerError."""
        try:
            value = parse_json(self._raw, self._path, wrong=TokenizerError)
        except TokenizerError as error:
            reason = str(error).removeprefix(f"{self._path}: ")
            raise TokenizerError(f"{self._path}: is no tokenizer: {reason}") from None
        return self._changes.apply(value) if self._changes and isinstance(value, dict) else value

    @cached_property
    def raw(self) -> bytes:
        """The text, which the library reads."""
        return json.dumps(self.read()).encode() if self._changes else self._raw


def beside(tokenizer: Tokenizer) -> list[str]:
    """The tokens of the folder that are missing in a tokenizer that was read from a file only."""
    folders = {path.parent for path in tokenizer.files.values()}
    if len(folders) != 1 or tokenizer.files.keys() & set(SETTINGS):
        return []
    try:
        texts = Settings(settings_in(folders.pop())).texts()
    except TokenizerError:  # these files were not requested, so their errors do not matter
        return []
    return [text for text in texts if tokenizer.token_to_id(text) is None]


class FolderReader:
    """Compares a tokenizer.json with the settings beside it: their changes, and notes about these.

    ``is_made`` means that it was made from GPT-2's two files; ``path`` is the first of these.
    """

    def __init__(
        self, raw: bytes, path: Path, settings: Settings, *, is_made: bool = False
    ) -> None:
        self._settings, self._path, self._is_made = settings, path, is_made
        self._head = _without_model(raw, path)
        cutter = self._head.get("pre_tokenizer")
        self._cutter: dict[str, Any] = cutter if isinstance(cutter, dict) else {}
        added = self._head.get("added_tokens") or []
        if not isinstance(added, list) or not all(map(_has_id, added)):
            added = []  # malformed, which its reader will report
        by_id = {one["id"]: _with_flags(one) for one in added}
        self._current = {token["content"] for token in by_id.values()}
        self._tokens = settings.tokens(by_id, byte_level=b'"ByteLevel"' in raw)
        self.definition = Definition(raw, path, self._changes(raw))

    def _changes(self, raw: bytes) -> Changes:
        prefix, prefixes = self._prefix_space(), _prefixes(self._cutter)
        is_fixed = self._settings.config.get("fix_mistral_regex") and self._is_mistral()
        return Changes(
            tokens=tuple(self._tokens),
            prefix_space=prefix if prefixes and prefixes != {prefix} else None,
            bert=self._bert(),
            pattern=_MISTRAL_PATTERN if is_fixed and _size(raw) > _MISTRAL_LEAST else None,
        )

    def _prefix_space(self) -> bool | None:
        """The add_prefix_space that the tokenizer's class sets, or None."""
        default = getattr(_CLASSES.get(self._settings.class_name), "prefix_space", None)
        value = self._settings.config.get("add_prefix_space")
        return default if default is None or value is None else bool(value)

    def _bert(self) -> dict[str, Any]:
        """The flags of a BertNormalizer that the config sets to other values."""
        node = self._head.get("normalizer") or {}
        if node.get("type") != "BertNormalizer" or self._settings.class_name not in _BERTS:
            return {}
        config = self._settings.config
        wanted = {flag: config.get(key, usual) for key, (flag, usual) in _OF_BERT.items()}
        return {flag: value for flag, value in wanted.items() if node.get(flag, value) != value}

    def _is_mistral(self) -> bool:
        """Whether transformers looks for the wrong pattern of Mistral's models in the folder."""
        path = self._path.parent / "config.json"
        if not path.is_file() or not self._cutter:
            return False
        model = read_object(path, missing=TokenizerError, wrong=TokenizerError)
        version = str(model.get("transformers_version") or "0").partition(".")[0]
        is_old = not version.isdecimal() or int(version) < 5
        return is_old and model.get("model_type") in (None, *_MISTRAL_TYPES)

    def notes(self, tokenizer: Tokenizer) -> list[str]:
        """What a user should know about how the folder was read; ``tokenizer`` is the result."""
        settings = self._settings
        notes = []
        texts = dict.fromkeys(one["content"] for one in self._tokens)
        new = [text for text in texts if text not in self._current]
        if self._is_made:  # then every token is new, even those of the class
            new = [text for text in new if text in settings.texts()]
        if new:
            shown = ", ".join(f"{text} ({tokenizer.token_to_id(text)})" for text in new[:_SHOWN])
            more = f" and {len(new) - _SHOWN:,} more" if len(new) > _SHOWN else ""
            notes.append(
                f"{settings.where} adds {counted(len(new), 'token')} to {self._path.name}: "
                f"{shown}{more}"
            )
        if changed := [text for text in texts if text in self._current]:
            notes.append(f"{settings.where} has other flags for {', '.join(changed[:_SHOWN])}")
        for number, token in settings.listed:
            actual = tokenizer.token_to_id(token["content"])
            if actual != number:
                notes.append(
                    f"{settings.where} says that {token['content']} has the id {number}; "
                    f"{'it has none' if actual is None else f'it is {actual}'}, as in transformers"
                )
                break
        return [*notes, *self._notes_of_class(), *self._notes_of_keys(tokenizer)]

    def _notes_of_class(self) -> Iterator[str]:
        """What transformers does because of the tokenizer's class, and tokpack does not."""
        name, where = self._settings.class_name, self._settings.where
        known = _CLASSES.get(name)
        if known is not None and known.pattern:
            form = (self._head.get("normalizer") or {}).get("type", "")
            try:
                pattern = patterns.recognize(_with_prefix(self._cutter, False))
            except NotNativeError:
                pattern = "another"
            if (form, pattern) != (known.form, known.pattern):
                what = "cuts" if pattern != known.pattern else "normalizes"
                yield (
                    f"{where} names {name}, which {what} text otherwise than {self._path.name} in "
                    "transformers 5: the file is followed, as in transformers 4"
                )
        code: Any = self._settings.config.get("auto_map")
        if isinstance(code, dict) and code.get("AutoTokenizer"):
            named = brief(code["AutoTokenizer"])
            yield f"{where} names code of its own ({named}), which is not run"

    def _notes_of_keys(self, tokenizer: Tokenizer) -> Iterator[str]:
        """Other values of the config for which transformers 4 and 5 differ, or that are
        surprising.
        """
        config, where = self._settings.config, self._settings.where
        if config.get("split_special_tokens"):
            yield f"{where} sets split_special_tokens: special tokens in documents are text"
        for key in _NOT_READ:
            if config.get(key):
                yield f"{where} sets {key}, which is not read"
        prefix = config.get("add_prefix_space")
        if (
            isinstance(prefix, bool)
            and self._prefix_space() is None
            and self._cutter.get("type") == "ByteLevel"
            and _prefixes(self._cutter) != {prefix}
        ):
            yield (
                f"{where} sets add_prefix_space to {str(prefix).lower()} for a class that does not "
                "read it in transformers 5: it is left as it is; transformers 4 sets it"
            )
        if (
            self._is_mistral()
            and not config.get("fix_mistral_regex")
            and tokenizer.vocab_size > _MISTRAL_LEAST
            and _MISTRAL_PATTERN not in _expressions(self._cutter)
        ):
            yield (
                f"{self._path}: transformers warns of an incorrect expression in such models of "
                'Mistral; it is used as it is, as there: "fix_mistral_regex": true in '
                f"{CONFIG} puts the right one in its place"
            )
        if (self._path.parent / "tekken.json").is_file():
            yield (
                f"{self._path.parent} has Mistral's tekken.json too, whose ids may be others: "
                f"{self._path.name} is read; name tekken.json for the other one"
            )


def _without_model(raw: bytes, path: Path) -> dict[str, Any]:
    """A tokenizer.json without its model, which is nearly all of it, and usually comes last."""
    try:
        head = json.loads(raw[: raw.index(b'"model"')].rstrip().removesuffix(b",") + b"}")
        if {"added_tokens", "normalizer", "pre_tokenizer"} <= head.keys():
            return dict(head)
    except (ValueError, RecursionError, AttributeError):
        pass
    whole = parse_json(raw, path, wrong=TokenizerError)
    return {k: v for k, v in whole.items() if k != "model"} if isinstance(whole, dict) else {}


def _size(raw: bytes) -> int:
    """The number of tokens in the vocabulary of a tokenizer.json."""
    try:
        return len(json.loads(raw)["model"]["vocab"])
    except (ValueError, RecursionError, TypeError, KeyError):
        return 0


def _with_flags(token: dict[str, Any]) -> Token:
    """An added token of a tokenizer.json with all flags, and without its id."""
    special = bool(token.get("special"))
    flags = {flag: bool(token.get(flag)) for flag in _FLAGS}
    normalized = bool(token.get("normalized", not special))
    return {"content": token["content"], **flags, "normalized": normalized}


def _steps(node: Any) -> list[dict[str, Any]]:
    """The steps of a pre_tokenizer, those of a Sequence one by one."""
    if not isinstance(node, dict):
        return []
    children = node.get("pretokenizers") if node.get("type") == "Sequence" else None
    return [s for c in children for s in _steps(c)] if isinstance(children, list) else [node]


def _prefixes(cutter: Any) -> set[bool]:
    """The add_prefix_space of each ByteLevel of a pre_tokenizer."""
    steps = (step for step in _steps(cutter) if step.get("type") == "ByteLevel")
    return {bool(step.get("add_prefix_space", True)) for step in steps}


def _expressions(cutter: Any) -> list[Any]:
    nodes = (step.get("pattern") for step in _steps(cutter))
    return [node.get("Regex") for node in nodes if isinstance(node, dict)]
