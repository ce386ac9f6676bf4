"""One render says where turns are only where the template does not look ahead."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_twin import FAMILIES, text_of
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
    "{{ see(messages) }}": False,  # there are some
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
# What is written behind messages, and what decides it with the generation prompt.
PROMPT = "{% if add_generation_prompt %}[assistant]{% endif %}"
BEHIND: dict[str, tuple[tuple[str, str], ...] | None] = {
    "": (),
    "{{ 'eos' }}": (),
    "{% if not add_generation_prompt %}eos{% endif %}": (),
    PROMPT: (),
    "{% if add_generation_prompt and ns.x % 2 %}[assistant]{% endif %}": (("ns", "x"),),
    "{% if add_generation_prompt %}[assistant]{% else %}eos{% endif %}": (),
    "{% if ns.x % 2 %}odd{% endif %}" + PROMPT: (("ns", "x"),),
    "{{ ns.x }}" + PROMPT: (("ns", "x"),),
    "{% set ns.x = messages | length %}{{ ns.x }}" + PROMPT: None,
    "{% if add_generation_prompt %}{% set ns.x = 7 %}{{ ns.x }}{% endif %}": None,
    "{{ ns['x'] }}" + PROMPT: None,
    "{{ messages[-1].role }}" + PROMPT: None,
    "{{ see(ns.x) }}" + PROMPT: None,
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
    + [(template_of(part, [], ""), ahead) for part, ahead in BEFORE.items()],
)
def test_looking_ahead_is_seen(template: str, ahead: bool) -> None:
    text = Program(template, "here", None).run(TALK, {})
    assert text.turns is not None
    assert text.is_plain(1) != ahead


@pytest.mark.parametrize("behind", BEHIND)
def test_what_decides_a_prompt_is_known(behind: str) -> None:
    assert Program(template_of("", [], behind), "here", None).syntax.decides == BEHIND[behind]


SET = "{% set ns.x = 1 %}"


def search(test: str, what: str, first: str = "") -> str:
    """A loop over messages that writes nothing."""
    return f"{{% for m in messages %}}{first}{{% if {test} %}}{what}{{% endif %}}{{% endfor %}}"


@pytest.mark.parametrize(
    ("template", "plain"),
    [
        # A search that finds nothing after a message needs nothing after it.
        (search("m.role == 'x'", SET), 1),
        (search("m.content == 'Hi'", SET), 1),
        (search("m.content == 'Bye'", SET), 0),
        (search("m.content == 'Bye'", "{% break %}"), 1),
        (search("loop.index0", "{% break %}", SET), 1),
        ("{% for m in messages %}{% if j() %}{% endif %}{% endfor %}{{ j() }}", 0),
        ("{% for m in messages %}{% set _ = c.next() %}{% endfor %}{{ c.current }}", 0),
        ("{% set x %}{% for m in messages %}{{ m.role }}{% endfor %}{% endset %}{{ x }}", 0),
        ("{{ messages | map(attribute='role') | join }}", 0),
        ("{% for m in messages[1:] %}{% else %}nobody{% endfor %}", 0),
    ],
)
def test_a_search_has_looked_as_far_as_it_has_effects(template: str, plain: int) -> None:
    given = "{% set j = joiner() %}{% set c = cycler(1, 2) %}"
    text = Program(template_of(given + template, [], ""), "here", None).run(TALK, {})
    assert text.turns is not None
    assert text.is_plain(1) == plain


def test_templates_with_two_loops_have_turns_by_the_one_that_is_used() -> None:
    template = "{% if tools %}" + LOOP + "{% else %}" + LOOP + "{% endif %}"
    text = Program(template, "here", None).run(TALK, {"tools": None})
    assert text.turns is not None
    both = Program(LOOP + LOOP, "here", None).run(TALK, {})
    assert both.turns is None


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
    assert [role for _, _, role in rendered.turns] == [one["role"] for one in TALK]
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


def refusal(template: str, talk: list[dict[str, Any]], **options: Any) -> str:
    """Why a conversation is refused."""
    with pytest.raises(ConversationError) as caught:
        Renderer(template, ChatOptions(**options)).render({"messages": talk})
    return caught.value.reason


PROMPTED = "{% if add_generation_prompt %}[assistant]{% endif %}"


@pytest.mark.parametrize(
    "order", ["messages | list", "messages[-9:]", "messages[:1] + messages[1:]"]
)
def test_a_loop_over_a_list_of_messages_is_not_that_before_it(order: str) -> None:
    system = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    template = system + LOOP.replace("in messages", f"in {order}") + PROMPTED
    talk = [{"role": "system", "content": "x"}, *TALK]
    (rendered,) = Renderer(template, ChatOptions()).render({"messages": talk})
    assert [rendered.text[a:b] for a, b in rendered.trained] == ["Oh.", "See."]


def test_what_is_behind_all_messages_is_no_end_of_a_turn() -> None:
    template = LOOP.replace("in messages", "in messages | list") + "That was all." + PROMPTED
    assert refusal(template, TALK[:2]) == "a turn is not found"
    dropped = template.replace(
        "messages | list", "messages | rejectattr('role', 'eq', 'tool') | list"
    )
    assert refusal(dropped, [*TALK[:2], {"role": "tool", "content": "x"}]) == "a turn is not found"


@pytest.mark.parametrize("options", [{"loss": "last"}, {}])
def test_blocks_of_generation_that_are_nobodys_are_not_trained(options: dict[str, str]) -> None:
    template = (
        "{% for message in messages | list %}[{{ message.role }}]{% generation %}"
        "{{ message.content }}{% endgeneration %}{% endfor %}"
    )
    untrained = [*TALK[:1], {**TALK[1], "weight": 0}, *TALK[2:]]
    assert refusal(template, TALK if options else untrained, **options) == "a turn is not found"


def test_the_beginning_of_an_answer_behind_all_messages_ends_no_turn() -> None:
    (rendered,) = Renderer(LOOP.replace(".{%", "{%") + "[assistant]", ChatOptions()).render(
        {"messages": TALK[:2]}
    )
    assert [rendered.text[a:b] for a, b in rendered.trained] == ["Oh"]


def test_a_message_that_ends_like_a_prompt_is_none() -> None:
    template = LOOP.replace("in messages", "in messages | list")
    talk = [{"role": "user", "content": "<think>"}, {"role": "assistant", "content": "a</think>b"}]
    for wanted in (True, False):
        options = ChatOptions(loss_on_thinking=wanted)
        (rendered,) = Renderer(template.replace(".{%", "\n{%"), options).render({"messages": talk})
        assert [rendered.text[a:b] for a, b in rendered.trained] == ["[assistant]a</think>b\n"]


def test_an_answer_that_is_not_written_has_no_place() -> None:
    template = (
        "{% for message in messages %}{% if loop.index0 > 1 %}{% break %}{% endif %}"
        "{{ message.content }}.{% endfor %}{{ 'end' if not add_generation_prompt }}"
    )
    assert refusal(template, TALK) == "a turn is not found"


def test_a_prompt_is_not_looked_for_where_no_question_is_written() -> None:
    template = LOOP.replace("in messages", "in messages[1:]") + "[assistant]"
    (rendered,) = Renderer(template, ChatOptions()).render({"messages": TALK})
    assert [rendered.text[a:b] for a, b in rendered.trained] == ["Oh.", "See."]


@pytest.mark.parametrize("rewriting", ["refuse", "as-is"])
def test_what_is_before_all_messages_is_no_answer(rewriting: Any) -> None:
    template = "Today." + LOOP.replace("in messages", "in messages[1:]")
    options = ChatOptions(rewriting=rewriting)
    (rendered,) = Renderer(template, options).render({"messages": [TALK[1], *TALK]})
    said = [rendered.text[a:b] for a, b in rendered.trained]
    assert said == ["[assistant]Oh.", "[assistant]See."]


def test_an_answer_of_which_nothing_is_written_has_no_end() -> None:
    template = (
        "{% for message in messages if message.content %}{{ message.content }}</s>{% endfor %}"
    )
    talk = [*TALK[:3], {"role": "assistant", "content": ""}, {"role": "user", "content": "</s>"}]
    (rendered,) = Renderer(template, ChatOptions()).render({"messages": talk})
    assert [rendered.text[a:b] for a, b in rendered.trained] == ["Oh</s>"]


def test_the_beginning_of_an_answer_in_a_thought_begins_none() -> None:
    (family,) = [one for one in FAMILIES if one.name == "qwen3_5"]
    talk = [*TALK[:1], {**TALK[1], "reasoning_content": "<|im_start|>assistant\nHm."}]
    (rendered,) = Renderer(family.source, ChatOptions()).render({"messages": talk})
    assert [rendered.text[a:b] for a, b in rendered.trained] == [
        "<|im_start|>assistant\nHm.\n</think>\n\nOh<|im_end|>"
    ]


def test_an_answer_does_not_begin_with_the_end_of_the_one_before() -> None:
    template = (
        "{% for message in messages %}{{ message.content }}{{ '</s>' if not loop.last }}"
        "{% endfor %}"
    )
    talk = [*TALK[:1], {**TALK[1], "weight": 0}, TALK[3]]
    (rendered,) = Renderer(template, ChatOptions()).render({"messages": talk})
    assert [rendered.text[a:b] for a, b in rendered.trained] == ["See"]


def test_a_token_that_only_ends_earlier_turns_is_found_without_turns() -> None:
    template = (
        "{% for message in messages | list %}[{{ message.role }}]{{ message.content }}"
        "{{ '<end>' if message.role == 'user' or not loop.last }}{% endfor %}" + PROMPTED
    )
    (rendered,) = Renderer(template, ChatOptions()).render({"messages": TALK})
    assert [rendered.text[a:b] for a, b in rendered.trained] == ["Oh<end>", "See"]


# Loops over what a generator gives.

TOOLS = [{"function": {"name": "f", "return": "x", "about": "y"}}]
PART = "{{ k }}{% if not loop.last %},{% endif %}"


@pytest.mark.parametrize(
    "loop",
    [
        "{% for k, v in tools[0].function.items() if k != 'return' %}" + PART,
        "{% for k in tools[0].function | list | reject('eq', 'return') %}" + PART,
        "{% for k in tools[0].function if k != 'return' %}{{ k }}{{ ',' * (loop.revindex0 > 0) }}",
        "{% for k in ['name', 'return', 'about'] | reject('eq', 'return') %}"
        "{{ k }}{{ ',' if loop.nextitem is defined }}",
        "{% for k in ['name', 'return', 'about'] if k != 'return' and messages %}"
        "{{ k }}{{ ',' if loop.index < loop.length }}",
    ],
)
def test_a_loop_with_a_condition_that_is_over_no_messages_hides_no_turns(loop: str) -> None:
    """Mistral's templates of 2024 write tools so."""
    template = (
        "{% for message in messages %}[{{ message.role }}]"
        "{% if message.role == 'user' %}" + loop + "{% endfor %}|{% endif %}"
        "{{ message.content }}.{% endfor %}" + PROMPTED
    )
    record = {"messages": TALK, "tools": TOOLS}
    for source in (template, template.replace(loop, "{% for k in [1] %}name,about")):
        (rendered,) = Renderer(source, ChatOptions()).render(record)
        assert rendered.text.startswith("[user]name,about|Hi.[assistant]Oh.[user]name,about|Bye.")
        assert [rendered.text[a:b] for a, b in rendered.trained] == ["Oh.", "See."]
        assert len(rendered.turns) == 4


@pytest.mark.parametrize(
    "loop",
    [
        "{% for m in messages if m.role != 'system' %}",
        "{% for m in messages | list if m.role != 'system' %}",
        "{% for m in messages | rejectattr('role', 'eq', 'system') %}",
        "{% for m in messages | list | rejectattr('role', 'eq', 'system') %}",
        "{% for m in messages[1:] | rejectattr('role', 'eq', 'system') %}",
    ],
)
def test_a_loop_that_takes_messages_before_their_turns_shows_none(loop: str) -> None:
    template = loop + "[{{ m.role }}]{{ m.content }}{{ '.' if loop.last else ';' }}{% endfor %}"
    text = Program(template, "here", None).run([{"role": "system", "content": "x"}, *TALK], {})
    assert text.turns is None


# Loops that go on where another one ended, as Kimi K2 Thinking has them.

SPLIT_AT = "{% set at = 2 %}"


@pytest.mark.parametrize(
    ("between", "known"),
    [("", True), (" \n", True), ("{{ '|' }}", False), ("{{ messages | length }}", False)],
)
def test_loops_over_messages_in_a_row_are_one(between: str, known: bool) -> None:
    first, then = "{% for message in messages[:at] %}", "{% for message in messages[at:] %}"
    template = SPLIT_AT + first + SAY + "{% endfor %}" + between + then + SAY + "{% endfor %}"
    text = Program(template, "here", None).run(TALK, {})
    assert (text.turns is not None) == known
    if text.turns is not None:
        pieces = [text.text[slice(*turn)] for turn in text.turns if turn is not None]
        assert [piece.strip() for piece in pieces] == [
            "[user]Hi.",
            "[assistant]Oh.",
            "[user]Bye.",
            "[assistant]See.",
        ]
    if not between:
        (rendered,) = Renderer(template + PROMPTED, ChatOptions()).render({"messages": TALK})
        assert [rendered.text[a:b] for a, b in rendered.trained] == ["Oh.", "See."]


@pytest.mark.parametrize(
    "loops",
    [
        ("messages[:at]", "messages[at + 1:]"),
        ("messages[at:]", "messages[:at]"),
        ("messages[:at]", "messages[:at]"),
        ("messages[:at]", "messages"),
    ],
)
def test_loops_that_do_not_go_on_are_several(loops: tuple[str, str]) -> None:
    template = SPLIT_AT + "".join(
        "{% for message in " + one + " %}" + SAY + "{% endfor %}" for one in loops
    )
    assert Program(template, "here", None).run(TALK, {}).turns is None


@pytest.mark.parametrize(
    "what",
    [
        *(
            "messages[:2] | length",
            "messages[1:3][0].content",
            "messages[:9] | map('length') | list",
        ),
        *("messages[:2] + messages[2:]", "messages[:1] == messages[0:1]", "messages[:2] | tojson"),
        *(
            "messages[1:3] | reverse | list",
            "messages[:2] is sequence",
            "messages[0] in messages[:1]",
        ),
        *("(messages[:0] or 'none')", "messages[:2] | last", "messages[:2][1:]", "messages[1:3]"),
    ],
)
def test_some_of_the_messages_are_a_list_for_a_template(what: str) -> None:
    template = "{{ " + what + " }}"
    expected = chat_template_utils._compile_jinja_template(template).render(messages=TALK)
    assert Program(template, "here", None).run(TALK, {}).text == expected


@pytest.mark.parametrize("rewriting", ["refuse", "split", "as-is"])
def test_an_agent_with_kimi_k2_thinking(rewriting: Any) -> None:
    """Its template leaves out earlier thinking, and that of answers without calls."""
    (family,) = [one for one in FAMILIES if one.name == "kimi_thinking"]
    function = {"name": "f", "arguments": {"x": 1}}
    call = {"id": "c00000001", "type": "function", "function": function}
    talk = [
        TALK[0],
        {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "content": "Mo", "tool_call_id": "c00000001"},
        {**TALK[1], "reasoning_content": "Ah."},
    ]
    renderer = Renderer(family.source, ChatOptions(rewriting=rewriting))
    said = '<|call|>c00000001<|arguments|>{"x": 1}<|called|><|im_end|>'
    if rewriting == "refuse":
        with pytest.raises(ConversationError, match="rewriting='split'"):
            renderer.render({"messages": talk})
        return
    texts = renderer.render({"messages": talk})
    trained = [one.text[a:b] for one in texts for a, b in one.trained]
    thought = "<think>Hm.</think>" if rewriting == "split" else ""
    assert trained == [thought + said, "Oh<|im_end|>"]
    assert sum(one.thoughts_unwritten for one in texts) == (1 if rewriting == "split" else 2)
    if rewriting == "split":
        asked = text_of(family, talk[:3], add_generation_prompt=True)
        assert texts[1].text.startswith(asked)
