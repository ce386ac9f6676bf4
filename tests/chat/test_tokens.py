"""One conversation, for people: text, tokens and mask belong together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.chat_twin import FAMILIES
from support.tiny_tokenizers import added, save, tiny

from tokpack.chat import ConversationError, render
from tokpack.chat.rendered import NO_CONVERSATION, SURROGATE
from tokpack.errors import UsageError
from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

TALK = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "ab\x1b"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small tokenizer with ChatML's template and tokens."""
    definition = tiny()
    tokens = {one: 259 + i for i, one in enumerate(["<|im_start|>", "<|im_end|>"])}
    definition["added_tokens"] += [added(one, number) for one, number in tokens.items()]
    definition["model"]["vocab"] |= tokens
    save(tmp_path, definition)
    (chatml,) = [one for one in FAMILIES if one.name == "chatml"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": chatml.source}))
    return tmp_path


def test_the_trained_tokens_are_those_of_the_trained_text(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    (one,) = render({"messages": TALK}, tokenizer=folder)
    assert one.ids.tolist() == tokenizer.encode(one.text)
    assert len(one.ids) == len(one.mask)
    assert tokenizer.decode(one.ids[one.mask == 1]) == "ab\x1b<|im_end|>"
    assert [turn.role for turn in one.turns] == ["user", "assistant"]


def test_what_is_trained_is_printed_in_brackets_and_nothing_that_a_terminal_obeys(
    folder: Path,
) -> None:
    (one,) = render({"messages": TALK}, tokenizer=load_tokenizer(folder), loss_on_eot=False)
    assert str(one) == (
        "<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n"
        "\N{LEFT DOUBLE ANGLE BRACKET}ab\\x1b\N{RIGHT DOUBLE ANGLE BRACKET}<|im_end|>\n"
    )
    assert repr(one) == f"<RenderedTokens: {len(one.ids)} tokens, 2 of them trained>"


def test_options_are_those_of_encode(folder: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{{ x }}{% endfor %}"
    (one,) = render(
        {"messages": TALK}, tokenizer=folder, chat_template=template, template_var={"x": "-"}
    )
    assert one.text == "abc-ab\x1b-"
    with pytest.raises(UsageError, match="loss_on_eot"):
        render({"messages": TALK}, tokenizer=folder, loss_on_eos=True)
    for wrong in ({"rewriting": "spilt"}, {"truncate": "middle"}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            render({"messages": TALK}, tokenizer=folder, **wrong)


def test_a_pair_has_two(folder: Path) -> None:
    record = {"prompt": "abc", "good": "a", "bad": "b"}
    good, bad = render(record, tokenizer=folder, pairs=("good", "bad"))
    assert ("a<" in good.text, "b<" in bad.text) == (True, True)


def test_what_is_no_text_is_refused(folder: Path) -> None:
    with pytest.raises(ConversationError, match=SURROGATE):
        render({"messages": [{**TALK[0], "content": "\ud800"}, TALK[1]]}, tokenizer=folder)


def test_what_is_no_conversation_is_refused(folder: Path) -> None:
    with pytest.raises(ConversationError, match=f"{NO_CONVERSATION}.*text"):
        render({"text": "x"}, tokenizer=folder)
    with pytest.raises(UsageError, match=r"messages.*list"):
        render(TALK, tokenizer=folder)  # type: ignore[arg-type]
