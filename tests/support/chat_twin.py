"""Chat templates by transformers, and trained spans by their definition: one prefix at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
import transformers

TEMPLATES = Path(__file__).parents[1] / "chat" / "templates"
DATE = "2026-11-23"

Message = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Family:
    """A published template: how its turns end, and what may be asked of it."""

    name: str
    ends: tuple[str, ...]  # end-of-turn tokens
    tokens: dict[str, str] = field(default_factory=dict)
    system: bool = True
    tools: bool = False
    thinking: bool = False
    trailer: str = ""  # what it writes behind all turns
    behind: str = r"(?!)"  # tokens that end a turn, of which the next one begins: an expression
    text_arguments: bool = False  # it takes the arguments of calls as text

    @property
    def source(self) -> str:
        """The template's text."""
        return (TEMPLATES / f"{self.name}.jinja").read_text(encoding="utf-8")


_LLAMA = {"bos_token": "<s>", "eos_token": "</s>"}
_DEEPSEEK = {
    "bos_token": "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    "eos_token": "<\uff5cend\u2581of\u2581sentence\uff5c>",
}
FAMILIES = [
    Family("chatml", ("<|im_end|>",)),
    Family("llama2", ("</s>",), _LLAMA),
    Family("llama3", ("<|eot_id|>",), {"bos_token": "<|begin_of_text|>"}, tools=True),
    Family("qwen2_5", ("<|im_end|>",), tools=True),
    Family("qwen3", ("<|im_end|>",), tools=True, thinking=True),
    Family(
        "deepseek_v3",
        ("<\uff5cend\u2581of\u2581sentence\uff5c>",),
        _DEEPSEEK,
        tools=True,
        text_arguments=True,
    ),
    Family("deepseek_r1", ("<\uff5cend\u2581of\u2581sentence\uff5c>",), _DEEPSEEK, thinking=True),
    Family("mistral_v3", ("</s>",), _LLAMA, tools=True),
    Family("mistral_v7", ("</s>",), _LLAMA),
    Family("gemma2", ("<end_of_turn>",), {"bos_token": "<bos>"}, system=False),
    Family("gemma3", ("<end_of_turn>",), {"bos_token": "<bos>"}),
    Family("zephyr", ("</s>",), _LLAMA),
    Family("phi3", ("<|end|>",), {"eos_token": "<|endoftext|>"}, trailer="<|endoftext|>"),
    Family("command_r", ("<|END_OF_TURN_TOKEN|>",), {"bos_token": "<BOS_TOKEN>"}),
    Family("glm4", (), tools=True, behind=r"<\|(user|observation|system)\|>"),
    Family("kimi_k2", ("<|im_end|>",), tools=True),
    Family("harmony", ("<|return|>", "<|call|>", "<|end|>"), tools=True, thinking=True),
    Family("gemma4", ("<turn|>", "<|tool_response>"), {"bos_token": "<bos>"}, tools=True),
    Family("jamba", (), tools=True, behind=r"<\|eom\|>", trailer="<|eom|>"),
    Family(
        "command_a",
        ("<|END_OF_TURN_TOKEN|>",),
        {"bos_token": "<BOS_TOKEN>"},
        trailer="<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
    Family("glm4_5", (), tools=True, thinking=True, behind=r"<\|(user|observation|system)\|>"),
    Family("nemotron3", ("<|im_end|>",), tools=True, thinking=True),
    Family("llama3_2", ("<|eot_id|>",), {"bos_token": "<|begin_of_text|>"}, tools=True),
    Family("qwen3_5", ("<|im_end|>",), tools=True, thinking=True),
    Family("mistral_nemo", ("</s>",), _LLAMA, tools=True),
    Family("kimi_thinking", ("<|im_end|>",), tools=True, thinking=True),
]


# What a prompt may have behind the beginning of an answer, which texts need not have.
_THINKING_OFFERED = re.compile(r"(<think>\s*(</think>\s*)?|<\|channel>thought\s*<channel\|>)$")


class RewrittenError(Exception):
    """Messages are not written the same once others follow them."""


class UnpromptedError(Exception):
    """An answer does not begin with the generation prompt."""


@cache
def tokenizer(family: Family) -> Any:
    """A tokenizer of transformers with a family's template, and its special tokens."""
    words = {"?": 0}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, chat_template=family.source, **family.tokens
    )


def text_of(family: Family, messages: list[Message], **variables: Any) -> str:
    """What transformers makes of messages; on the day of these tests."""
    module = transformers.utils.chat_template_utils
    template = module._compile_jinja_template(family.source)
    template.environment.globals["strftime_now"] = date.fromisoformat(DATE).strftime
    rendered: str = tokenizer(family).apply_chat_template(messages, tokenize=False, **variables)
    return rendered


def spans_of(
    family: Family, messages: list[Message], **variables: Any
) -> tuple[str, list[tuple[int, int]]]:
    """The text of a conversation, and what its assistant says in it.

    Raises RewrittenError, UnpromptedError.
    """
    whole = text_of(family, messages, **variables)
    spans = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        asked = text_of(family, messages[:i], add_generation_prompt=True, **variables)
        said = text_of(family, messages[: i + 1], **variables).removesuffix(family.trailer)
        if not said.startswith(asked):
            asked = _THINKING_OFFERED.sub("", asked)
        if not said.startswith(asked):
            before = text_of(family, messages[:i], **variables).removesuffix(family.trailer)
            raise UnpromptedError(i) if said.startswith(before) else RewrittenError(i)
        if not whole.startswith(said):
            raise RewrittenError(i)
        begin, end = len(asked), len(said)
        if said.rstrip().endswith(family.ends):
            end = len(said.rstrip())
        elif follows := re.compile(family.behind).match(whole, end):
            end = follows.end()
        opened = "" if asked.rstrip().endswith("<think>") else "<think>"
        empty = re.match(rf"\s*{opened}\s*</think>\s*", said[begin:])
        begin += empty.end() if empty else 0
        if begin < end:
            spans.append((begin, end))
    return whole, spans
