"""Datasets of made up conversations: tokens, masks and counts are those of each conversation alone.

    python -m torture.chat_datasets --seed 1 --minutes 5

A seed is a template, a tokenizer, options and records, of which some are no conversations. What is
trained of each text is known (`torture.conversations`); here it has to arrive on disk, by the
offsets of the Hugging Face library, and to come back from the formats of other programs.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import transformers
from support.chat_twin import DATE, FAMILIES, TEMPLATES
from support.made_up_chats import talk_of, template_of
from support.marking_twin import marked
from support.tiny_tokenizers import added, save, tiny
from tokenizers import Tokenizer, processors

import tokpack
from tokpack.chat import ChatOptions, ConversationError
from tokpack.chat.renderer import Renderer
from tokpack.chat.template import ChatTemplate
from tokpack.dataset.manifest import ROLES
from tokpack.errors import InputError, TokpackError, UsageError
from torture.conversations import generations_of, text_by_transformers
from torture.made_up import rounds

if TYPE_CHECKING:
    from tokpack.chat import Rendered

_Row = list[tuple[int, int, int]]  # of each token: id, whether it is trained, role
_MARKS = ["<|im_start|>", "<|im_end|>", "</s>", "<s>", "<think>", "</think>", "<|eot|>", "<|end|>"]
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BAD = [{"text": "x"}, {"messages": []}, {"messages": [{"role": "critic", "content": "x"}]}]
_BAD += [
    {"messages": [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "x"}]}
]
_RECORDS = 12
_FORMATS = {
    "neox": ("x", "x_document"),
    "olmo": ("x.npy", "x.npy"),
    "bridge": ("x.idx.parquet", "x.idx.parquet"),
    "parquet": ("x.parquet", "x.parquet"),
    "arrow": ("x", "x"),
}
EOD = "<|endoftext|>"


def tokenizer_of(rng: random.Random, folder: Path) -> Path:
    """A byte-level tokenizer, or one as Llama's, with special tokens that take white space."""
    definition = tiny() if rng.random() < 0.5 else _metaspace(rng)
    first = 1 + max(one["id"] for one in definition["added_tokens"])
    flags = {"lstrip": rng.random() < 0.3, "rstrip": rng.random() < 0.3}
    for number, one in enumerate(rng.sample(_MARKS, rng.randrange(len(_MARKS) + 1)), first):
        definition["added_tokens"].append(added(one, number, **flags))
    if definition["model"]["vocab"].get("\u0120") and rng.random() < 0.3:
        definition["normalizer"] = {"type": "NFC"}
    return save(folder, definition)


def _metaspace(rng: random.Random) -> dict[str, Any]:
    texts = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), _SPACE, *"abcHiuser", "\u4e2d"]
    texts = list(dict.fromkeys([*texts, "ab", _SPACE + "a"]))
    vocab = {text: number for number, text in enumerate(texts)}
    merges = [["a", "b"], [_SPACE, "a"]]
    made = tiny(unk_token="<unk>", fuse_unk=True, byte_fallback=True, vocab=vocab, merges=merges)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepend = {"type": "Prepend", "prepend": _SPACE}
    made["normalizer"] = {"type": "Sequence", "normalizers": [prepend, replace]}
    if rng.random() < 0.5:
        made["normalizer"] = None
    scheme = rng.choice(["first", "always", "never"])
    pre = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": scheme, "split": True}
    made["pre_tokenizer"] = None if made["normalizer"] else pre
    made["decoder"] = None
    made["added_tokens"] = [added(EOD, len(texts))]
    return made


class Case:
    """One seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = rng = random.Random(seed)
        self.folder = folder
        path = tokenizer_of(rng, folder)
        self.is_tagged, which = False, rng.random()
        if which < 0.5:
            made = template_of(rng)
            self.source, tokens, self.is_tagged = made.source, made.tokens, made.tagged
        elif which < 0.6:
            self.source = (TEMPLATES / "chatml_generation.jinja").read_text(encoding="utf-8")
            tokens, self.is_tagged = {}, True
        else:
            family = rng.choice(FAMILIES)
            self.source, tokens = family.source, dict(family.tokens)
        config = {"chat_template": self.source, **tokens}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        self.library = Tokenizer.from_file(str(path))
        if self.library.pre_tokenizer is None or "Byte" in str(self.library.pre_tokenizer):
            self.library.post_processor = processors.ByteLevel(trim_offsets=False)
        self.tokens = tokens
        self.theirs = transformers.PreTrainedTokenizerFast(
            tokenizer_object=self.library, chat_template=self.source
        )
        self.options = self._options()
        self.renderer = Renderer(
            ChatTemplate(self.source, tokens), ChatOptions(**self.options, variables={"date": DATE})
        )
        self.most = rng.choice([None, None, None, 40, 200])
        self.truncate = rng.choice(["drop", "left", "right"]) if self.most else "drop"
        self.eod = rng.random() < 0.3

    def _options(self) -> dict[str, Any]:
        rng, options = self.rng, dict[str, Any]()
        options["loss"] = rng.choice(["assistant"] * 4 + ["last", "all", "user", "tool,assistant"])
        options["rewriting"] = rng.choice(["refuse", "split", "as-is"])
        for name in ("loss_on_eot", "loss_on_thinking", "loss_on_empty_thinking"):
            options[name] = rng.random() < 0.7
        if rng.random() < 0.3:
            options["weight_key"] = "w"
        return options

    def records(self) -> list[dict[str, Any]]:
        """Conversations, and what is none."""
        rng, found = self.rng, []
        for _ in range(_RECORDS):
            if rng.random() < 0.15:
                found.append(rng.choice(_BAD))
                continue
            record: dict[str, Any] = {"messages": talk_of(rng, tools=rng.random() < 0.2)}
            if "weight_key" in self.options:
                record["w"] = rng.choice([1, 0.5, 0, 2, 7.25])
            found.append(record)
        return found

    def check(self) -> str:
        """Encode records and compare: what came of it."""
        records = self.records()
        expected, reasons, bad = self._expected(records)
        lines = [json.dumps(one) for one in records]
        (self.folder / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))
        output = self.folder / "out"
        options: dict[str, Any] = {**self.options, "append_eod": self.eod}
        if self.most:
            options |= {"max_length": self.most, "truncate": self.truncate}
        try:
            manifest = tokpack.encode(
                self.folder / "in.jsonl",
                output,
                tokenizer=str(self.folder),
                chat=True,
                workers=1,
                on_error="skip",
                template_var={"date": DATE},
                **options,
            )
        except InputError:
            if expected:
                raise
            return "no conversation"
        data = tokpack.MMapIndexedDataset(output)
        assert data.mask is not None
        columns = (data, data.mask, data.track("roles"))
        rows = [
            list(zip(*(one[i].tolist() for one in columns), strict=True)) for i in range(len(data))
        ]
        assert rows == [row for row, _ in expected]
        if "weight_key" in self.options:
            weights = np.fromfile(f"{output}.weights", np.float16)
            wanted = [weight for row, weight in expected for _ in row]
            assert weights.tolist() == wanted
        assert manifest.trained == sum(mask for row, _ in expected for _, mask, _ in row)
        assert dict(manifest.reasons) == dict(reasons), (manifest.reasons, reasons)
        assert manifest.adds_up
        named = (self.folder / "out.rejects.jsonl").read_text() if reasons else ""
        assert len(named.splitlines()) == sum(reasons.values())
        assert bad <= {json.loads(line)["line"] for line in named.splitlines()}
        return self._there_and_back(output)

    def _expected(self, records: list[dict[str, Any]]) -> tuple[list[Any], Counter[str], set[int]]:
        expected, reasons, bad = [], Counter[str](), set()
        for number, record in enumerate(records, 1):
            try:
                found = self.renderer.render(record)
                for one in found:
                    self._outside(one)
            except ConversationError as error:
                reasons[error.reason] += 1
                bad.add(number)
                continue
            if len(found) == 1:
                self._by_transformers(record, found[0])
            for one in found:
                row, reason = self._row(one)
                if reason:
                    reasons[reason] += 1
                else:
                    expected.append((row, one.weight))
        return expected, reasons, bad

    def _by_transformers(self, record: dict[str, Any], one: Rendered) -> None:
        """Compare ids, and masks that transformers knows, where it makes the same text."""
        (conversation,) = self.renderer.read(record)
        talk = conversation.messages
        if text_by_transformers(self.source, talk, self.tokens) != one.text:
            assert self.options["rewriting"] == "split"
            return
        theirs = self.theirs.apply_chat_template(
            talk, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **self.tokens
        )
        ids, mask = marked(self.library, one.text, one.trained)
        assert theirs["input_ids"] == ids
        options = self.options
        every = all(value for name, value in options.items() if name.startswith("loss_on"))
        every = every and options["loss"] == "assistant" and not conversation.untrained
        if self.is_tagged and every and one.weight and self._all_say(talk):
            assert theirs["assistant_masks"] == mask

    def _all_say(self, talk: list[Any]) -> bool:
        """Whether no block of generation is empty: transformers marks the token behind such one."""
        return all(begin < end for begin, end in generations_of(self.source, talk, self.tokens))

    def _outside(self, one: Rendered) -> None:
        one_text = one.text
        try:
            one_text.encode()
        except UnicodeEncodeError:
            raise ConversationError("a lone surrogate") from None
        roles = [(b, e) for b, e, role in one.turns if role == "assistant"]
        if self.options["loss"] in ("assistant", "last") and one.turns:
            for begin, end in one.trained:
                if not any(b <= begin and end <= e for b, e in roles):
                    raise ConversationError("trained outside of an answer")

    def _row(self, one: Rendered) -> tuple[_Row, str]:
        ids, mask = marked(self.library, one.text, one.trained)
        rows = list(zip(ids, mask, self._roles(one), strict=True))
        if self.eod:
            rows.append((self.library.token_to_id(EOD), 0, 0))
        is_cut = False
        if self.most and len(rows) > self.most:
            if self.truncate == "drop":
                return rows, "too long"
            is_cut = True
            if self.truncate == "left":
                rows = rows[-self.most :]
            else:
                rows = rows[: self.most - self.eod] + rows[len(rows) - self.eod :]
        if not any(is_trained for _, is_trained, _ in rows):
            return rows, "what is trained is cut off" if is_cut else "nothing is trained"
        return rows, ""

    def _roles(self, one: Rendered) -> list[int]:
        """The role of the turn in which each token begins."""
        places = self.library.encode(one.text, add_special_tokens=False).offsets
        return [
            next((ROLES.index(role) for b, e, role in one.turns if b <= begin < e), 0)
            for begin, _ in places
        ]

    def _there_and_back(self, output: Path) -> str:
        target = self.rng.choice(list(_FORMATS))
        made, again = (self.folder / name for name in _FORMATS[target])
        if "weight_key" in self.options:
            return "equal"
        try:
            tokpack.convert(str(output), str(made), to=target)
        except UsageError:  # OLMo-core's documents end at an EOD
            assert target == "olmo"
            return "no documents for olmo"
        source = {"from_": "olmo"} if target == "olmo" else {}
        tokpack.convert(str(again), str(self.folder / "back"), dtype="int32", **source)
        one, other = (tokpack.MMapIndexedDataset(self.folder / name) for name in ("out", "back"))
        assert len(one) == len(other)
        assert one.mask is not None
        assert other.mask is not None
        for i in range(len(one)):
            assert one[i].tolist() == other[i].tolist()
            # Nobody predicts a first token, and some formats do not keep whether it is trained.
            assert one.mask[i].tolist()[1:] == other.mask[i].tolist()[1:]
        return f"there and back by {target}"


def check(seed: int) -> str:
    """One seed: what came of it. AssertionError with all that repeats it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            case = Case(seed, Path(folder))
        except TokpackError as error:
            return type(error).__name__
        try:
            return case.check()
        except Exception as error:
            raise AssertionError(
                f"seed {seed}, {case.options}, {case.source!r}: {error}"
            ) from error


if __name__ == "__main__":
    rounds(check, __doc__)
