"""What of an assistant's turn is trained: its end, its thinking, its calls, as is chosen."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from support.chat_twin import DATE, FAMILIES, TEMPLATES
from tokenizers import Tokenizer, models, pre_tokenizers

from tokpack.chat import ChatOptions, ConversationError
from tokpack.chat.rendered import REWRITTEN
from tokpack.chat.renderer import Renderer
from tokpack.chat.template import ChatTemplate
from tokpack.errors import UsageError

USER = {"role": "user", "content": "Which day?"}
ANSWER = {"role": "assistant", "content": "Monday."}
CALLS = [
    {"id": "c00000001", "type": "function", "function": {"name": n, "arguments": {"x": 1}}}
    for n in ("f", "g")
]
TEXT_CALLS = [
    {**one, "function": {**one["function"], "arguments": '{"x": 1}'}}  # type: ignore[dict-item]
    for one in CALLS
]


def trained(
    family: str, talk: list[dict[str, Any]], variables: dict[str, Any] | None = None, **options: Any
) -> list[str]:
    """The trained texts of a conversation with a published template."""
    (found,) = [one for one in FAMILIES if one.name == family]
    chosen = ChatOptions(variables={"date": DATE, **(variables or {})}, **options)
    renderer = Renderer(ChatTemplate(found.source, found.tokens), chosen)
    (rendered,) = renderer.render({"messages": talk})
    return [rendered.text[begin:end] for begin, end in rendered.trained]


THOUGHT = [USER, {**ANSWER, "reasoning_content": "Hm."}]


@pytest.mark.parametrize(
    ("family", "options", "expected"),
    [
        ("qwen3", {}, "<think>\nHm.\n</think>\n\nMonday.<|im_end|>"),
        ("qwen3", {"loss_on_thinking": False}, "Monday.<|im_end|>"),
        ("qwen3", {"loss_on_eot": False}, "<think>\nHm.\n</think>\n\nMonday."),
        (
            "harmony",
            {},
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
            "Monday.<|return|>",
        ),
        (
            "harmony",
            {"loss_on_thinking": False, "loss_on_eot": False},
            "<|channel|>final<|message|>Monday.",
        ),
    ],
)
def test_thinking_is_trained_unless_it_is_not(
    family: str, options: dict[str, bool], expected: str
) -> None:
    assert trained(family, THOUGHT, **options) == [expected]


def test_no_empty_thinking_is_trained_unless_asked_for() -> None:
    assert trained("qwen3", [USER, ANSWER]) == ["Monday.<|im_end|>"]
    assert trained("qwen3", [USER, ANSWER], loss_on_empty_thinking=True) == [
        "<think>\n\n</think>\n\nMonday.<|im_end|>"
    ]


def test_what_the_prompt_says_is_not_trained() -> None:
    off = {"enable_thinking": False}
    assert trained("qwen3", [USER, ANSWER], off, loss_on_empty_thinking=True) == [
        "Monday.<|im_end|>"
    ]


def test_a_thinking_that_the_prompt_begins_is_thinking() -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ '<think>\n' if m.role == 'assistant' }}"
        "{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}{{ '[assistant]<think>\n' }}{% endif %}"
    )
    record = {"messages": [USER, {**ANSWER, "content": "Hm.\n</think>\n\nMonday."}]}
    for wanted, text in ((True, "Hm.\n</think>\n\nMonday.<end>"), (False, "Monday.<end>")):
        renderer = Renderer(template, ChatOptions(loss_on_thinking=wanted))
        (rendered,) = renderer.render(record)
        assert [rendered.text[a:b] for a, b in rendered.trained] == [text]


@pytest.mark.parametrize(
    ("family", "content", "expected"),
    [
        ("qwen2_5", "Let me see>", ["Let me see>", "<|im_end|>"]),
        ("qwen2_5", None, ["<|im_end|>"]),
        ("qwen3", "Let me see>", ["Let me see>", "<|im_end|>"]),
        ("deepseek_v3", "Well", ["Well", "<\uff5cend\u2581of\u2581sentence\uff5c>"]),
        ("kimi_k2", "Well", ["Well", "<|im_end|>"]),
        ("llama3", "", ["<|eot_id|>"]),
        ("mistral_v3", None, ["</s>"]),
    ],
)
def test_calls_are_trained_unless_they_are_not(
    family: str, content: str | None, expected: list[str]
) -> None:
    every = TEXT_CALLS if family == "deepseek_v3" else CALLS
    calls = every[: 1 if family == "llama3" else 2]
    talk = [USER, {"role": "assistant", "content": content, "tool_calls": calls}]
    (whole,) = trained(family, talk)
    assert "x" in whole
    assert trained(family, talk, loss_on_tool_calls=False) == expected


def test_unknown_roles_to_train_are_refused() -> None:
    with pytest.raises(UsageError, match="critic"):
        trained("chatml", [USER, ANSWER], loss="assistant,critic")
    assert trained("chatml", [USER, ANSWER], loss="user") == ["Which day?<|im_end|>"]


def test_a_conversation_may_begin_with_its_answer() -> None:
    assert trained("chatml", [ANSWER, USER, ANSWER]) == ["Monday.<|im_end|>"] * 2


def test_without_an_answer_nothing_is_trained() -> None:
    assert trained("chatml", [USER]) == []


GENERATION = (TEMPLATES / "chatml_generation.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def theirs() -> Any:
    """A tokenizer of transformers for characters, with a template that marks generations."""
    vocab = {character: i for i, character in enumerate("?" + "".join(map(chr, range(32, 127))))}
    vocab["\n"] = len(vocab)
    core = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, chat_template=GENERATION)


@pytest.mark.parametrize("talk", [[USER, ANSWER], [USER, ANSWER] * 3, [USER, ANSWER, USER]])
def test_generation_blocks_are_those_of_transformers(theirs: Any, talk: list[Any]) -> None:
    module = transformers.utils.chat_template_utils
    expected = module._render_with_assistant_indices(
        module._compile_jinja_template(GENERATION), talk, None, None, False
    )
    (rendered,) = Renderer(GENERATION, ChatOptions()).render({"messages": talk})
    assert (rendered.text, list(rendered.trained)) == expected
    out = theirs.apply_chat_template(
        talk, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    mask = [any(a <= i < b for a, b in rendered.trained) for i in range(len(rendered.text))]
    assert sum(out["assistant_masks"]) == sum(mask)


def test_only_the_chosen_generation_blocks_are_trained() -> None:
    talk = [USER, ANSWER, USER, {**ANSWER, "content": "Tuesday."}]
    (rendered,) = Renderer(GENERATION, ChatOptions(loss="last")).render({"messages": talk})
    assert [rendered.text[a:b] for a, b in rendered.trained] == ["Tuesday.<|im_end|>\n"]


def test_of_a_pair_only_what_differs_is_trained() -> None:
    (chatml,) = [one for one in FAMILIES if one.name == "chatml"]
    talk = [USER, ANSWER, USER]
    record = {
        "chosen": [*talk, {**ANSWER, "content": "Tuesday."}],
        "rejected": [*talk, {**ANSWER, "content": "Who knows."}],
    }
    both = Renderer(chatml.source, ChatOptions()).render(record)
    assert [[one.text[a:b] for a, b in one.trained] for one in both] == [
        ["Tuesday.<|im_end|>"],
        ["Who knows.<|im_end|>"],
    ]


def test_the_weight_goes_with_the_text() -> None:
    (chatml,) = [one for one in FAMILIES if one.name == "chatml"]
    renderer = Renderer(chatml.source, ChatOptions(weight_key="w"))
    (rendered,) = renderer.render({"messages": [USER, ANSWER], "w": 0.25})
    assert rendered.weight == 0.25
    with pytest.raises(ConversationError, match=r"\bw$"):
        renderer.render({"messages": [USER, ANSWER]})


def test_no_content_is_not_the_word_none() -> None:
    talk = [USER, {"role": "assistant", "content": None, "tool_calls": CALLS[:1]}]
    (said,) = trained("glm4_5", talk)
    assert "None" not in said
    (said,) = trained("deepseek_v3", [USER, {**talk[1], "tool_calls": TEXT_CALLS[:1]}])
    assert said.startswith("<\uff5ctool\u2581calls\u2581begin\uff5c>")


def test_blocks_of_generation_in_macros_are_none_if_there_are_others() -> None:
    template = (
        "{% macro call(m) %}{% generation %}{{ m.tool_calls | tojson }}{% endgeneration %}"
        "{% endmacro %}{% for m in messages %}[{{ m.role }}]{% generation %}{{ m.content }}"
        "{% endgeneration %}{{ call(m) if m.tool_calls }}.{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    talk = [USER, {**ANSWER, "tool_calls": [{"function": {"name": "f"}}]}]
    (rendered,) = Renderer(template, ChatOptions()).render({"messages": talk})
    said = rendered.text.partition("[assistant]")[2]
    assert [rendered.text[a:b] for a, b in rendered.trained] == [said]


def test_where_the_last_turn_is_not_to_be_trained_none_is() -> None:
    talk = [USER, ANSWER, USER, {**ANSWER, "weight": 0}]
    assert trained("chatml", talk, loss="last") == []


def test_what_varies_behind_messages_ends_no_turn() -> None:
    """As the number of the messages, which a message may end with too."""
    source = (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
        "{{ messages | length }}"
    )
    renderer = Renderer(ChatTemplate(source), ChatOptions(loss="user"))
    (made,) = renderer.render({"messages": [{"role": "user", "content": "1"}, {**USER}]})
    assert [made.text[begin:end] for begin, end in made.trained] == ["1", "Which day?"]
    assert renderer._plain._ends.tokens == ()


def test_an_answer_to_another_question_is_refused_however_many_were_before() -> None:
    """Mistral's writes the system message into the last question, unless an answer follows."""
    (family,) = [one for one in FAMILIES if one.name == "mistral_v3"]
    options = ChatOptions(variables={"date": DATE})
    renderer = Renderer(ChatTemplate(family.source, family.tokens), options)
    for _ in range(20):  # the first ones are also held against the definition
        with pytest.raises(ConversationError, match=f"{REWRITTEN}: .*rewriting='split'"):
            renderer.render({"messages": [{"role": "system", "content": "Hm."}, USER, ANSWER]})


@pytest.mark.parametrize("options", [{}, {"rewriting": "split"}, {"rewriting": "as-is"}])
@pytest.mark.parametrize("content", ["", "</s>", "Monday."])
def test_a_token_behind_all_messages_is_no_generation_prompt(
    content: str, options: dict[str, Any]
) -> None:
    """An empty answer begins with it by chance, and its end would not be trained."""
    source = (
        "{% for m in messages %}{{ m.content }}{{ '</s>' if m.role == 'assistant' }}{% endfor %}"
    )
    for behind, talk in (
        ("{{ eos_token }}", [{**ANSWER, "content": content}, USER]),
        ("{{ eos_token }}", [USER, {**ANSWER, "content": content}]),
        ("{{ '\\n' }}", [USER, {**ANSWER, "content": "\nMonday."}]),
    ):
        template = ChatTemplate(source + behind, {"eos_token": "</s>"})
        renderer = Renderer(template, ChatOptions(**options))
        with pytest.raises(ConversationError, match=r"message [01]\b.*chat_template='FILE'"):
            renderer.render({"messages": talk})


def test_a_template_that_leaves_out_later_messages_has_a_token_for_the_last_one() -> None:
    source = (
        "{% for m in messages %}{% if loop.index0 > 3 %}{% break %}{% endif %}{{ m.content }}"
        "{{ '<|end|>' if loop.last and m.role == 'assistant' else '</s>' }}{% endfor %}"
    )
    renderer = Renderer(ChatTemplate(source), ChatOptions(loss_on_eot=False))
    (one,) = renderer.render({"messages": [USER, ANSWER]})
    assert one.text == "Which day?</s>Monday.<|end|>"
    assert [one.text[begin:end] for begin, end in one.trained] == ["Monday."]
