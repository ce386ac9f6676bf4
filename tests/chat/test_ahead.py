"""One render says where turns are only where the template does not look ahead."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import chat_template_utils

from tokpack.chat import ChatOptions, ConversationError
from tokpack.chat.program import Program
from tokpack.chat.renderer import Renderer
from tokpack.errors import UsageError

SAY = "[{{ message.role }}]{{ message.content }}."
LOOP = "{% for message in messages %}" + SAY + "{% endfor %}"

# What a template may do, and whether that looks ahead.
AHEAD = {
    "{% if loop.last %}L{% endif %}": True,
    "{{ loop.length }}": True,
    "{{ loop.revindex }}": True,
    "{{ loop['last'] }}": True,
    "{% if loop.nextitem is defined %}N{% endif %}": True,
    "{{ messages[-1].content }}": True,
    "{{ messages | length }}": True,
    "{{ (messages | last).role }}": True,
    "{{ messages | map(attribute='role') | join }}": True,
    "{% if messages[loop.index0 + 1] is defined %}N{% endif %}": True,
    "{{ messages[loop.index0 - 1].role }}": True,  # at first the last one's
    "{% for m in messages %}{{ m.role }}{% endfor %}": True,
    "{% for m in messages[1:] %}{% if loop.last %}{% endif %}{% endfor %}": True,
    "{% set all = messages[::-1] %}{{ all[0].role }}": True,
    "{{ see(loop) }}": True,
    "{{ see(messages) }}": True,
    "{{ count() }}": True,
    "{% if loop.first %}F{% endif %}": False,
    "{{ loop.index }}{{ loop.index0 }}": False,
    "{{ loop.previtem.role if loop.previtem is defined }}": False,
    "{{ messages[0].content }}": False,
    "{{ messages[loop.index0].role }}": False,
    "{% if loop.index0 %}{{ messages[loop.index0 - 1].role }}{% endif %}": False,
    "{% if messages %}M{% endif %}": False,
    "{% if messages | length > 0 and messages is defined %}M{% endif %}": False,
    "{% if loop.last and add_generation_prompt %}P{% endif %}": False,
    "{% for c in message.content %}{{ c }}{% if not loop.last %},{% endif %}{% endfor %}": False,
    "{% set ns.x = ns.x + 1 %}{{ ns.x }}": False,
    "{% set all = messages %}{{ all[0].role }}": False,
    "{{ see(message.role) }}": False,
    "{% generation %}{{ message.content }}{% endgeneration %}": False,
    "{% if message.content == 'a' %}{% break %}{% endif %}": False,
    "{% if message.content == 'b' %}{% continue %}{% endif %}": False,
}
BEFORE = {
    "": False,
    "{{ 'bos' }}": False,
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}": False,
    "{% for m in messages %}{% set ns.x = ns.x + 1 %}{% endfor %}": True,
    "{% set ns.x = messages | length %}": True,
}
BEHIND = {
    "": False,
    "{{ 'eos' }}": False,
    "{% if not add_generation_prompt %}eos{% endif %}": False,
    "{% if add_generation_prompt %}[assistant]{% endif %}": False,
    "{% if add_generation_prompt and ns.x % 2 %}[assistant]{% endif %}": False,
    "{% if add_generation_prompt %}[assistant]{% else %}eos{% endif %}": False,
    "{% if ns.x % 2 %}odd{% endif %}": True,
    "{{ ns.x }}": True,
    "{{ messages[-1].role }}": True,
}
MACROS = (
    "{% set ns = namespace(x=0) %}{% macro see(what) %}{{ 1 if what else 0 }}{% endmacro %}"
    "{% macro count() %}{{ messages | length }}{% endmacro %}"
)
TALK = [
    {"role": role, "content": text}
    for role, text in (("user", "Hi"), ("assistant", "Oh"), ("user", "Bye"), ("assistant", "See"))
]


def template_of(before: str, inside: list[str], behind: str) -> str:
    """A template of such parts."""
    loop = "{% for message in messages %}[{{ message.role }}]" + "".join(inside)
    return MACROS + before + loop + "{{ message.content }}.{% endfor %}" + behind


@pytest.mark.parametrize(
    ("template", "ahead"),
    [(template_of("", [part], ""), ahead) for part, ahead in AHEAD.items()]
    + [(template_of(part, [], ""), ahead) for part, ahead in BEFORE.items()]
    + [(template_of("", [], part), ahead) for part, ahead in BEHIND.items()],
)
def test_looking_ahead_is_seen(template: str, ahead: bool) -> None:
    program = Program(template, "here", None)
    program.run(TALK, {})
    assert program.has_turns
    assert program.ahead == ahead


@settings(max_examples=80, deadline=None)
@given(
    before=st.sampled_from(sorted(BEFORE)),
    inside=st.lists(st.sampled_from(sorted(AHEAD)), max_size=3),
    behind=st.sampled_from(sorted(BEHIND)),
    talk=st.lists(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["user", "assistant", "tool"]),
                "content": st.sampled_from(["a", "b", "user", "[assistant]", "eos", "."]),
            }
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_one_render_says_what_prefixes_say(
    before: str, inside: list[str], behind: str, talk: list[dict[str, Any]]
) -> None:
    template = template_of(before, inside, behind)
    try:
        # It compares both, for its first conversations, and raises TokpackError.
        found = Renderer(template, ChatOptions()).render({"messages": talk})
    except (UsageError, ConversationError):
        return
    theirs = chat_template_utils._compile_jinja_template(template)
    (rendered,) = found
    assert rendered.text == theirs.render(messages=talk, tools=None, documents=None)


def test_a_loop_that_leaves_messages_out_has_turns_for_the_others() -> None:
    template = (
        "{% for message in messages if message.role != 'system' %}" + SAY + "{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    talk = [{"role": "system", "content": "x"}, *TALK]
    (rendered,) = Renderer(template, ChatOptions()).render({"messages": talk})
    assert [turn.role for turn in rendered.turns] == [one["role"] for one in TALK]
    assert [rendered.text[a:b] for a, b in rendered.trained] == ["Oh.", "See."]


def test_a_template_that_collects_its_text_has_turns_by_prefixes() -> None:
    template = (
        "{% set ns = namespace(x='') %}{% for message in messages %}"
        "{% set ns.x = ns.x + '[' + message.role + ']' + message.content + '.' %}{% endfor %}"
        "{{ ns.x }}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    (rendered,) = Renderer(template, ChatOptions()).render({"messages": TALK})
    assert [rendered.text[a:b] for a, b in rendered.trained] == ["Oh.", "See."]


def test_a_generation_in_a_macro_is_found_by_prefixes() -> None:
    template = (
        "{% macro say(m) %}[{{ m.role }}]{% generation %}{{ m.content }}.{% endgeneration %}"
        "{% endmacro %}{% for message in messages %}{{ say(message) }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    (rendered,) = Renderer(template, ChatOptions()).render({"messages": TALK})
    assert [rendered.text[a:b] for a, b in rendered.trained] == ["Oh.", "See."]
