"""Made up conversations and chat templates, of which is known what an assistant says in them.

A template is made twice from the same parts: as it is, and with marks around what each message
says. The text without marks has to be that of the plain one, and the marks say where turns are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

# Characters that no template knows: who has written what. They are in contents.
USER, ASSISTANT, THOUGHT, CALLED = "\ue000", "\ue001", "\ue002", "\ue003"
# Marks: a message's number follows the first one; its text begins, its text ends, its turn ends.
NUMBER, BEGIN, END, OVER = "\ue0f0", "\ue0f1", "\ue0f2", "\ue0f3"
_MARKED = re.compile(f"{NUMBER}(\\d+){BEGIN}|{END}|{OVER}")

_WORDS = [
    *("abc", "a", "Hi.", " ", "  ", "\n", "\n\n", "\t", "\r\n", "\xa0", "\u3000", "\x85", "\u2028"),
    *("é中", "\U0001f600", "\U0001f468\u200d\U0001f469", "e\u0301", "\u1112\u1161\u11ab", "\ufdfa"),
    *("\x00", "\x1b[0m", "\ufeff", "\u202e", "{{ 7 * 7 }}", "{% raw %}", "{# x", "'", '"', "\\n"),
    *("assistant", "user", "None", "Assistant: ", "user: ", "[assistant]", "[user]", "42", "%s"),
]
_MARKUP = [
    *("<|im_start|>assistant\n", "<|im_end|>", "<|im_end|>\n", "<|im_start|>user\n", "[INST]"),
    *("[/INST]", " [/INST] ", "</s>", "<s>", "<|end|>", "<|return|>", "<|assistant|>", "<|user|>"),
    *("<think>", "</think>", "<think>\n\n</think>\n\n", "<tool_call>", "</tool_response>", "<eos>"),
    *("<|start|>assistant", "7351846201937426", "<|eot_id|>", "<end_of_turn>\n", "END"),
]
_HEADS = ["<think>\n\n</think>\n\n", "<think>\nHm.\n</think>\n\n", "<think>", "</think>", " ", "\n"]


def content_of(rng: random.Random, who: str) -> str:
    """A text with the character of who writes it somewhere, or an empty one."""
    if rng.random() < 0.08:
        return rng.choice(["", "", " ", "\n"])
    pool = _WORDS + _MARKUP if rng.random() < 0.4 else _WORDS
    parts = [rng.choice(pool) for _ in range(rng.choice([1, 1, 2, 3, 6]))]
    parts.insert(rng.randrange(len(parts) + 1), who)
    if rng.random() < 0.01:
        parts.insert(1, "abc " * 3000)
    if who == ASSISTANT and rng.random() < 0.15:
        parts.insert(0, rng.choice(_HEADS))
    return "".join(parts)


def _arguments(rng: random.Random, depth: int = 0) -> Any:
    kinds = ["text", "number", "null"] + ["list", "dict"] * (depth < 3)
    kind = rng.choice(kinds)
    if kind == "text":
        return content_of(rng, CALLED)
    if kind == "number":
        return rng.choice([0, -1, 1.5, True, 10**20])
    if kind == "list":
        return [_arguments(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == "dict":
        return {f"k{i}": _arguments(rng, depth + 1) for i in range(rng.randrange(3))}
    return None


def talk_of(rng: random.Random, *, tools: bool = False, thinking: bool = False) -> list[Any]:
    """Messages in an order that templates know, or in any."""
    if rng.random() < 0.6:
        roles = ["system"] * (rng.random() < 0.3)
        for _ in range(rng.choice([1, 1, 2, 3])):
            roles += ["user", "assistant"]
            if tools and rng.random() < 0.5:
                roles += [*["tool"] * rng.choice([1, 1, 2]), "assistant"]
        roles += ["user"] * (rng.random() < 0.15)
    else:
        names = ["user", "assistant", "assistant", "system", "developer", *["tool"] * tools]
        roles = [rng.choice(names) for _ in range(rng.choice([1, 2, 3, 4, 6]))]
    talk: list[Any] = []
    for i, role in enumerate(roles):
        who = ASSISTANT if role == "assistant" else USER
        one: dict[str, Any] = {"role": role, "content": content_of(rng, who)}
        if rng.random() < 0.1:
            one["content"] = [
                {"type": "text", "text": content_of(rng, who)} for _ in range(rng.choice([1, 2]))
            ]
        if role == "tool":
            one["name"], one["tool_call_id"] = "find", "c00000001"
        calls = i + 1 < len(roles) and roles[i + 1] == "tool"
        if tools and role == "assistant" and (calls or rng.random() < 0.1):
            arguments = {"x": _arguments(rng), "who": CALLED}
            function = {"name": "find", "arguments": arguments}
            call = {"id": "c00000001", "type": "function", "function": function}
            one["tool_calls"] = [call] * rng.choice([1, 1, 1, 2])
            if rng.random() < 0.5:
                one["content"] = rng.choice(["", None])
        if thinking and role == "assistant" and rng.random() < 0.5:
            one["reasoning_content"] = content_of(rng, THOUGHT)
        if rng.random() < 0.03:
            one |= rng.choice([{"weight": 0}, {"train": False}])
        talk.append(one)
    return talk


@dataclass(frozen=True)
class MadeUp:
    """A template, and the same with marks; ``ends`` are the tokens that may end its turns.

    ``tagged``: it has generation blocks. ``prompt`` is its generation prompt, which it writes where
    one is asked for if ``is_prompted``. ``opened`` is the beginning of thinking at its end.
    """

    source: str
    marked: str
    ends: tuple[str, ...]
    tagged: bool
    prompt: str
    is_prompted: bool
    opened: str

    @property
    def tokens(self) -> dict[str, str]:
        """The special tokens that it may name."""
        return {"bos_token": "<s>", "eos_token": "</s>"}


# Who begins a turn: for an assistant, for others, and the prompt; a quote begins an expression.
_HEADERS = [
    (
        "'<|im_start|>assistant\\n'",
        "'<|im_start|>' ~ message.role ~ '\\n'",
        "<|im_start|>assistant\n",
    ),
    ("'[assistant]'", "'[' ~ message['role'] ~ ']'", "[assistant]"),
    ("'Assistant: '", "message.role | capitalize ~ ': '", "Assistant: "),
    ("'Assistant:'", "message.role.upper() ~ ':'", "Assistant:"),
    ("'<|assistant|>\\n'", "'<|' ~ message.role ~ '|>\\n'", "<|assistant|>\n"),
    ("'<|assistant|>'", "'<|' ~ message.role ~ '|>'", "<|assistant|>"),
    ("''", "'[INST] '", ""),
    ("''", "''", ""),
    ("'\\n\\n'", "'\\n\\n' ~ message.role ~ '\\n'", "\n\n"),
]
_CONTENTS = [
    *["message.content"] * 5,
    *["message['content'] | trim"] * 2,
    "message.content.strip()",
    "message.content.rstrip()",
    "message.content.lstrip('\\n')",
    "(message.content or '')",
    "message.content | replace('a', 'bb')",
    "message.content[:40]",
    "message.content.split('</think>')[-1]",
    "text",
]
_TEXT = (
    "{% if message.content is string %}{% set text = message.content %}{% else %}"
    "{% set ns.text = '' %}{% for part in message.content or [] %}"
    "{% set ns.text = ns.text ~ part.text %}{% endfor %}{% set text = ns.text %}{% endif %}"
)
# What ends a turn: token and white space behind it.
_ENDS = [
    ("<|im_end|>", "\n"),
    ("<|im_end|>", ""),
    ("</s>", ""),
    ("</s>", "\n"),
    ("<|eot|>", "\n\n"),
]
_ENDS += [("", "\n"), ("", ""), ("<|end|>", " "), ("<end_of_turn>", "\n")]
_BEFORE = [
    *[""] * 6,
    "{{ bos_token }}",
    "{% if messages[0].role == 'system' %}{{ 'S:' ~ messages[0].content ~ '\\n' }}{% endif %}",
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}",
    "{{ messages | length }}",
    "{{ strftime_now('%d %B') ~ '\\n' }}",
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}",
    "{% if tools %}{{ tools | tojson }}{% endif %}",
    "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}",
]
_LOOPS = [
    *["{% for message in messages %}"] * 8,
    "{% for message in messages if message.role != 'system' %}",
    "{% for message in messages if message.content %}",
    "{% for message in messages[1:] %}",
    "{% for message in messages | reverse %}",
    "{% for message in messages[-3:] %}",
    "{% for message in messages | list %}",
    "{% for message in messages | sort(attribute='role') %}",
    "{% for role in ['user', 'assistant'] %}{% for message in messages if message.role == role %}",
]
# At the beginning of a round.
_ROUNDS = [
    *[""] * 8,
    "{% if message.role == 'system' %}{% continue %}{% endif %}",
    "{% if message.role == 'tool' %}{% continue %}{% endif %}",
    "{% if loop.index0 > 3 %}{% break %}{% endif %}",
    "{% if loop.last %}{{ '!' }}{% endif %}",
    "{% if loop.first %}{{ 'F' }}{% endif %}",
    "{% set ns.i = ns.i + 1 %}{{ ns.i }}",
    "{% if message.role == 'user' and loop.index0 >= ns.last %}{{ 'now: ' }}{% endif %}",
    "{% if message.role == 'assistant' and loop.index0 < ns.last %}{{ '~' }}{% endif %}",
    "{% if loop.index0 and messages[loop.index0 - 1].role == 'assistant' %}{{ '</s>' }}{% endif %}",
]
_BEHIND = [*[""] * 6, "{{ 'END' }}", "{{ eos_token }}", "{{ '\\n' }}", "{{ messages | length }}"]
_BEHIND += ["{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"]
_ASKS = [
    *["{% if add_generation_prompt %}PROMPT{% endif %}"] * 8,
    "{% if add_generation_prompt and messages[-1].role != 'assistant' %}PROMPT{% endif %}",
    "{% if add_generation_prompt and ns.i % 2 %}PROMPT{% endif %}",
    "PROMPT",
    "",
    "{% if add_generation_prompt %}{{ 'Something: ' }}{% endif %}",
]
_NAMES = "{% set ns = namespace(i=0, last=0, text='') %}"


def template_of(rng: random.Random) -> MadeUp:
    """A template of parts."""
    own, others, prompt = rng.choice(_HEADERS)
    content = rng.choice(_CONTENTS)
    token, space = rng.choice(_ENDS)
    other_token = token if rng.random() < 0.7 else rng.choice(_ENDS)[0]
    only_own = rng.random() < 0.15
    last_token = rng.choice(_ENDS)[0] if token and rng.random() < 0.08 else token
    when_last = f"({_quoted(last_token)} if loop.last else {_quoted(token)})"
    ended = _quoted(token) if token == last_token else when_last
    opened = "<think>\n" if rng.random() < 0.06 else ""
    asks = rng.choice(_ASKS).replace("PROMPT", "{{ " + _quoted(prompt + opened) + " }}")
    loop, tag = rng.choice(_LOOPS), rng.choice([*[""] * 4, "content", "turn", "header", "macro"])
    before, start = rng.choice(_BEFORE), rng.choice(_ROUNDS)
    behind, in_macro = rng.choice(_BEHIND), rng.random() < 0.1
    if "role in" in loop:  # its turns are in one loop or in two, so its ends are anybody's guess
        behind = ""
    merged = rng.random() < 0.05
    header = "{% if not loop.index0 or messages[loop.index0 - 1].role != message.role %}"
    made = []
    for marked in (False, True):
        number, begin, end, over = (NUMBER, BEGIN, END, OVER) if marked else [""] * 4
        first = f"'{number}' ~ message.n ~ '{begin}'" if marked else "''"
        said = f"{{{{ {first} ~ ({content}) ~ '{end}' }}}}"
        close = f"{{{{ {ended} ~ '{over}{space}' }}}}".replace("\n", "\\n")
        if not token:
            close = f"{{{{ {ended} ~ '{space}{over}' }}}}".replace("\n", "\\n")
        head = f"{{{{ {own} }}}}"
        if merged:
            head = header + head + "{% endif %}"
        mine = _tagged(tag, head, said, close)
        theirs = f"{{{{ {others} }}}}{said}"
        if prompt == "" and "INST" in others:
            theirs += "{{ ' [/INST]' }}"
        last = "" if only_own else other_token
        theirs += f"{{{{ '{last}{over}{space}' }}}}".replace("\n", "\\n")
        text = _TEXT if content == "text" else ""
        body = "{% if message.role == 'assistant' %}" + mine + "{% else %}" + theirs + "{% endif %}"
        macro = ""
        if in_macro:
            macro = "{% macro say(message, loop) %}" + text + body + "{% endmacro %}"
            text, body = "", "{{ say(message, loop) }}"
        ended_loop = "{% endfor %}" * loop.count("{% for")
        parts = (_NAMES, macro, before, loop, start, text, body, ended_loop, behind, asks)
        made.append("".join(parts))
    ends = tuple({one for one in (token, last_token, other_token, "</s>") if one})
    is_prompted = asks.startswith("{% if add_generation_prompt %}")
    is_tagged = bool(tag) and not in_macro
    return MadeUp(made[0], made[1], ends, is_tagged, prompt, is_prompted, opened)


def _quoted(text: str) -> str:
    return "'" + text.replace("\n", "\\n") + "'"


def _tagged(tag: str, head: str, said: str, close: str) -> str:
    begin, end = "{% generation %}", "{% endgeneration %}"
    if tag == "content":
        return head + begin + said + end + close
    if tag == "turn":
        return head + begin + said + close + end
    if tag == "header":
        return begin + head + said + close + end
    if tag == "macro":
        return head + begin + said + "{% if true %}" + close + "{% endif %}" + end
    return head + said + close


@dataclass
class Marked:
    """What a message says in a text: [begin, end), and where its turn is over."""

    number: int
    begin: int
    end: int = -1
    over: int = -1


def marks_of(text: str) -> tuple[str, list[Marked]]:
    """A text without its marks, and what they say."""
    found: list[Marked] = []
    plain, at = "", 0
    for one in _MARKED.finditer(text):
        plain += text[at : one.start()]
        at = one.end()
        if one[0] == END:
            found[-1].end = len(plain)
        elif one[0] == OVER:
            found[-1].over = len(plain)
        else:
            found.append(Marked(int(one[1]), len(plain)))
    return plain + text[at:], found


def changed(rng: random.Random, source: str) -> str:
    """A template with something of it left out, twice there, or elsewhere."""
    parts = re.split(r"(\{[%{].*?[%}]\})", source, flags=re.DOTALL)
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(len(parts))
        how = rng.random()
        if how < 0.3:
            parts[at] = ""
        elif how < 0.5:
            parts.insert(at, rng.choice(parts))
        elif how < 0.7:
            other = rng.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        else:
            parts[at] = _with_other_words(rng, parts[at])
    return "".join(parts)


def _with_other_words(rng: random.Random, part: str) -> str:
    words = [
        *[("assistant", "user"), ("not ", ""), ("==", "!="), ("first", "last"), ("-%}", "%}")],
        *[("messages", "messages[1:]"), ("content", "role"), (" + ", " ~ "), ("|trim", "")],
        *[("add_generation_prompt", "true"), ("loop.last", "loop.first"), ("<|im_end|>", "")],
    ]
    old, new = rng.choice(words)
    return part.replace(old, new)
