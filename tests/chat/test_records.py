"""Records of other programs become the same messages."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokpack.chat import ChatOptions, ConversationError
from tokpack.chat.records import FLAGS, OWN, Conversation, RecordReader, detect

USER, ANSWER = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}
SYSTEM = {"role": "system", "content": "Be kind."}
CALL = {"name": "f", "arguments": {"x": 1}}


def read(record: dict[str, Any], *, parts: bool = False, **options: Any) -> list[Conversation]:
    """The conversations of a record."""
    taken = {"user": False, "assistant": False} if parts else {}
    return RecordReader(ChatOptions(**options), parts=taken, none=False).read(record)


def messages_of(record: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """The messages of a record's one conversation."""
    (conversation,) = read(record, **options)
    return conversation.messages


def reason(record: dict[str, Any], **options: Any) -> str:
    """Why a record is refused."""
    with pytest.raises(ConversationError) as caught:
        read(record, **options)
    return caught.value.reason


FORMS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [USER, ANSWER]},
    "conversations": {
        "conversations": [
            {"from": "human", "value": "Hello"},
            {"from": "gpt", "value": "Good day"},
        ]
    },
    "prompt and completion": {"prompt": "Hello", "completion": "Good day"},
    "alpaca": {"instruction": "Hello", "input": "", "output": "Good day"},
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_recognized_and_read(form: str) -> None:
    assert detect([FORMS[form], {"text": "x"}], ChatOptions()) == form
    assert messages_of(FORMS[form]) == [USER, ANSWER]
    with_system = {**FORMS[form], "system": "Be kind."}
    assert messages_of(with_system) == [SYSTEM, USER, ANSWER]


def test_several_forms_are_all_named() -> None:
    assert detect(FORMS.values(), ChatOptions()) == " or ".join(FORMS)
    assert detect([{"text": "x"}], ChatOptions()) == ""


def test_messages_may_be_json_and_under_another_key() -> None:
    record = {"talk": '[{"role": "user", "content": "Hello"}]'}
    assert messages_of(record, messages_key="talk") == [USER]
    assert reason(record) == "no conversation"
    assert reason(record, messages_key="other") == "no conversation"


def test_an_alpaca_input_follows_its_instruction() -> None:
    record = {"instruction": "Add", "input": "1 and 2", "output": "3"}
    assert messages_of(record)[0]["content"] == "Add\n1 and 2"


@pytest.mark.parametrize(
    "wrong",
    [
        *({"instruction": ["Add"]}, {"input": 7}, {"output": 7}),
        {"output": ["Good day", "Go away"]},  # a pair, as LLaMA-Factory once had it
        {"history": [["Hello", ["Good", "day"]]]},
    ],
)
def test_alpaca_of_other_than_texts_is_refused(wrong: dict[str, Any]) -> None:
    assert reason({**FORMS["alpaca"], **wrong}) == "malformed message"


def test_a_text_of_hh_rlhf_may_end_where_an_answer_begins() -> None:
    record = {"prompt": "\n\nHuman: Hello\n\nAssistant:", "chosen": "Good day", "rejected": "No"}
    assert read(record)[0].messages == [USER, ANSWER]
    chosen, _ = read({**record, "prompt": "\n\nHuman: "})
    assert chosen.messages == [{**USER, "content": ""}, ANSWER]


def test_only_the_completion_is_trained() -> None:
    record = {"prompt": [SYSTEM, USER, ANSWER, USER], "completion": [ANSWER]}
    (conversation,) = read(record)
    assert conversation.messages == [SYSTEM, USER, ANSWER, USER, ANSWER]
    assert conversation.first_trained == 4


@pytest.mark.parametrize(
    "record",
    [
        {"chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "No"}]},
        {"prompt": "Hello", "chosen": "Good day", "rejected": "No"},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "No"}]},
        {"prompt": [USER], "chosen": "Good day", "rejected": "No"},
        {
            "prompt": "Hello",
            "chosen": [USER, ANSWER],
            "rejected": [USER, {**ANSWER, "content": "No"}],
        },
        {
            "prompt": [{"from": "human", "value": "Hello"}],
            "chosen": [USER, {**ANSWER, "name": None}],
            "rejected": [USER, {"role": "gpt", "content": "No"}],
        },
    ],
)
def test_pairs_are_trained_from_where_they_differ(record: dict[str, Any]) -> None:
    chosen, rejected = read(record)
    assert chosen.messages == [USER, ANSWER]
    assert rejected.messages == [USER, {**ANSWER, "content": "No"}]
    assert chosen.first_trained == rejected.first_trained == 1
    assert detect([record], ChatOptions()) == "pairs"


def test_pairs_may_have_other_keys() -> None:
    record = {"prompt": "Hello", "good": "Good day", "bad": "No"}
    assert [one.messages[-1]["content"] for one in read(record, pairs=("good", "bad"))] == [
        "Good day",
        "No",
    ]
    assert reason({"good": "x"}, pairs=("good", "bad")) == "no conversation"


def test_of_a_pair_of_the_same_answers_nothing_is_trained() -> None:
    for one in read({"prompt": "Hello", "chosen": "x", "rejected": "x"}):
        assert one.first_trained == len(one.messages)


def test_roles_of_other_programs_and_of_the_request() -> None:
    said = {"from": "bing", "value": "Good day"}
    assert messages_of({"conversations": [USER, said]})[1] == ANSWER
    odd = {"messages": [{"role": "critic", "content": "Hm"}, ANSWER]}
    assert reason(odd) == "unknown role"
    assert messages_of(odd, role_map={"critic": "user"})[0]["role"] == "user"
    assert reason({"messages": [{"role": 7, "content": "x"}]}) == "unknown role"


def test_a_call_of_sharegpt_is_a_tool_call() -> None:
    call = {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'}
    (message,) = messages_of({"conversations": [call]})
    assert message == {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": CALL}],
    }


@pytest.mark.parametrize("value", ["7", '["f"]', "{"])
def test_a_call_of_sharegpt_that_is_none_is_refused(value: str) -> None:
    talk = [{"from": "function_call", "value": value}]
    assert reason({"conversations": talk}) == "malformed message"


@pytest.mark.parametrize("arguments", ['{"x": 1}', {"x": 1}, "not JSON"])
def test_arguments_of_calls_stay_as_they_are(arguments: Any) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    record = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    assert messages_of(record)[0]["tool_calls"] == [call]


def test_parts_of_text_are_joined_unless_the_template_reads_them() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    record = {"messages": [{"role": "user", "content": parts}]}
    assert messages_of(record) == [USER]
    assert messages_of(record, parts=True)[0]["content"] == parts


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "user", "content": "Look", "images": ["a.png"]},
        {"role": "user", "content": "Look", "video": "a.mp4"},
    ],
)
def test_media_are_refused_by_name(message: dict[str, Any]) -> None:
    assert reason({"messages": [message]}) == "has images, audio or video"


def test_empty_lists_of_media_are_none() -> None:
    assert messages_of({"messages": [{**USER, "images": []}]})[0]["content"] == "Hello"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], "empty conversation"),
        ("[]", "empty conversation"),
        ("{", "malformed message"),
        (7, "no conversation"),
        ({"role": "user"}, "no conversation"),
        ([7], "malformed message"),
        ([{"role": "user"}], "malformed message"),
        ([{"role": "user", "content": None}], "malformed message"),
        ([{"role": "user", "content": 7}], "malformed message"),
        ([{"role": "user", "content": [7]}], "malformed message"),
        ([{"content": "Hello"}], "malformed message"),
    ],
)
def test_what_is_no_conversation_is_refused(messages: Any, expected: str) -> None:
    assert reason({"messages": messages}) == expected


def test_values_that_are_none_are_not_there() -> None:
    record = {"messages": [{**USER, "name": None, "tool_calls": None}, ANSWER], "tools": None}
    (conversation,) = read(record)
    assert conversation.messages == [USER, ANSWER]
    assert conversation.variables == {}


@pytest.mark.parametrize("given", [{"enable_thinking": False}, '{"enable_thinking": false}'])
def test_tools_documents_and_variables_go_to_the_template(given: Any) -> None:
    record = {
        "messages": [USER],
        "tools": '[{"name": "f"}]',
        "documents": [{"title": "a", "text": "b"}],
        "chat_template_kwargs": given,
    }
    assert read(record)[0].variables == {
        "enable_thinking": False,
        OWN: "{'enable_thinking': False}",
        "tools": [{"name": "f"}],
        "documents": [{"title": "a", "text": "b"}],
    }


@pytest.mark.parametrize("given", [7, "{", "7", ["a"]])
def test_variables_that_are_no_mapping_are_refused(given: Any) -> None:
    assert reason({"messages": [USER], "chat_template_kwargs": given}) == "malformed message"


@pytest.mark.parametrize("tools", [7, "{", "7", {"name": "f"}])
def test_tools_that_are_no_list_are_refused(tools: Any) -> None:
    assert reason({"messages": [USER], "tools": tools}) == "malformed message"


def test_reasoning_has_the_names_that_transformers_gives_it() -> None:
    (message,) = messages_of({"messages": [{**ANSWER, "reasoning": "Hm"}]})
    assert (message["reasoning_content"], message["thinking"]) == ("Hm", "Hm")


QUESTION = {"question": "Hello"}
TOLD = {"chosen": "Good day", "rejected": "No"}
PROMPTS: dict[str, dict[str, Any]] = {
    "Intel's orca_dpo_pairs": {**QUESTION, **TOLD},
    "LLaMA-Factory's Alpaca": {"instruction": "Hel", "input": "lo", **TOLD},
    "LLaMA-Factory's ShareGPT": {
        "conversations": [{"from": "human", "value": "Hello"}],
        "chosen": {"from": "gpt", "value": "Good day"},
        "rejected": {"from": "gpt", "value": "No"},
    },
    "OpenAI's": {
        "input": {"messages": [USER], "tools": [], "parallel_tool_calls": True},
        "preferred_output": [ANSWER],
        "non_preferred_output": [{**ANSWER, "content": "No"}],
    },
    "axolotl's": {"messages": [USER], "chosen": ANSWER, "rejected": {**ANSWER, "content": "No"}},
    "axolotl's of argilla": {
        "instruction": "Hello",
        "chosen_response": "Good day",
        "rejected_response": "No",
    },
    "ms-swift's": {"messages": [USER, ANSWER], "rejected_response": "No"},
    "ms-swift's of messages": {
        "messages": [USER, ANSWER],
        "rejected_messages": [USER, {**ANSWER, "content": "No"}],
    },
    "ms-swift's of a query": {"query": "Hello", "response": "Good day", "rejected_response": "No"},
    "a table of texts": {
        "messages": json.dumps([USER]),
        "chosen": json.dumps([ANSWER]),
        "rejected": json.dumps([{**ANSWER, "content": "No"}]),
    },
    "the answer in the prompt, too": {"prompt": [USER, ANSWER], **TOLD},
    "a question that is formatted": {
        "prompt": "Hello",
        "instruction": "Hel",
        "input": "lo",
        **TOLD,
    },
    "ultrafeedback_binarized": {
        "prompt": "Hello",
        "chosen": [USER, ANSWER],
        "rejected": [USER, {**ANSWER, "content": "No"}],
    },
}


@pytest.mark.parametrize("form", PROMPTS)
def test_what_a_pair_answers_is_found(form: str) -> None:
    record = PROMPTS[form]
    if form == "LLaMA-Factory's Alpaca":
        record = {**record, "instruction": "Hello", "input": ""}
    chosen, rejected = read(record)
    assert (chosen.messages, chosen.first_trained) == ([USER, ANSWER], 1)
    assert rejected.messages == [USER, {**ANSWER, "content": "No"}]
    assert detect([record], ChatOptions()) == "pairs"
    with_system = {**record, "system": "Be kind."}
    assert [one.messages[0] for one in read(with_system)] == [SYSTEM, SYSTEM]


def test_what_was_said_before_a_question_is_before_a_pair() -> None:
    record = {**QUESTION, **TOLD, "history": [["Hi", "Ho"]]}
    for one in read(record):
        assert [each["content"] for each in one.messages[:3]] == ["Hi", "Ho", "Hello"]
    asked = {"instruction": "Add", "input": "1 and 2", **TOLD}
    assert [one.messages[0]["content"] for one in read(asked)] == ["Add\n1 and 2"] * 2


@pytest.mark.parametrize(
    "record",
    [
        TOLD,
        {**TOLD, "id": 7, "system": "Be kind.", "score": 0.5},
        {**QUESTION, "input": "a text", **TOLD},
        {**QUESTION, "context": "a text", **TOLD},
        {"prompt": "Summarize", "input": "a text", **TOLD},
        {"prompt": [SYSTEM], **TOLD},
        {"messages": [USER, {**ANSWER, "content": "Another"}], **TOLD},
        {
            "prompt": "Another question",
            "chosen": [USER, ANSWER],
            "rejected": [USER, {**ANSWER, "content": "No"}],
        },
        {
            "messages": [{**USER, "content": "Another"}],
            "chosen": [USER, ANSWER],
            "rejected": [USER, {**ANSWER, "content": "No"}],
        },
    ],
)
def test_a_pair_whose_prompt_is_not_clear_says_how_to_name_it(record: dict[str, Any]) -> None:
    with pytest.raises(ConversationError, match="prompt_key=") as caught:
        read(record, pairs=("chosen", "rejected"))
    assert caught.value.reason == "no conversation"
    if "score" in record:
        assert "chosen, rejected, id, system, score" in str(caught.value)


def test_a_prompt_is_named_at_any_depth_or_is_none() -> None:
    record = {"data": {"asked": "Hello"}, **QUESTION, "context": "x", **TOLD}
    for key in ("data.asked", "question"):
        assert [one.messages[0] for one in read(record, prompt_key=key)] == [USER, USER]
    assert [one.messages for one in read(record, prompt_key="")] == [
        [ANSWER],
        [{**ANSWER, "content": "No"}],
    ]
    assert reason(record, prompt_key="other") == "no conversation"
    answered = {**QUESTION, "completion": "Good day"}
    assert messages_of(answered, prompt_key="question") == [USER, ANSWER]


def test_messages_with_an_answer_are_no_prompt() -> None:
    record = {"messages": [USER, ANSWER], **TOLD}
    assert messages_of(record) == [USER, ANSWER]
    assert [one.messages[-1]["content"] for one in read(record, pairs=tuple(TOLD))] == [
        "Good day",
        "No",
    ]


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_say_what_is_not_trained(flag: str) -> None:
    for said, untrained in ((False, [1]), (0.0, [1]), (0, [1]), (True, []), (1, []), (None, [])):
        (found,) = read({"messages": [USER, {**ANSWER, flag: said}]})
        assert list(found.untrained) == untrained
    turns = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Ha", flag: 0}]
    assert list(read({"conversations": turns})[0].untrained) == [1]
    for wrong in (0.5, "false", [0, 1], float("nan")):
        assert reason({"messages": [USER, {**ANSWER, flag: wrong}]}) == "malformed message"


@pytest.mark.parametrize(
    "wrong",
    [
        *({"train_detail": [{"begin_offset": 0}]}, {"to_train": False}, {"assistant_mask": 0}),
        *({"supervised": False}, {"training_detail": {"a": 1}}, {"Loss": False}),
    ],
)
def test_flags_that_are_not_known_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConversationError, match=next(iter(wrong))):
        read({"messages": [USER, {**ANSWER, **wrong}]})


def test_other_keys_of_messages_are_no_flags() -> None:
    more = {"glossary": ["a"], "training_source": "x", "lossless": None, "train_detail": []}
    (found,) = read({"messages": [USER, {**ANSWER, **more}]})
    assert list(found.untrained) == []


@pytest.mark.parametrize(
    "beside", [{"loss_mask": [0, 1]}, {"train": False}, {"train": "False"}, {"weights": 1}]
)
def test_flags_beside_the_messages_are_refused(beside: dict[str, Any]) -> None:
    record = {"messages": [USER, ANSWER], **beside}
    if "weights" in beside:
        assert messages_of(record) == [USER, ANSWER]
        return
    with pytest.raises(ConversationError, match=next(iter(beside))):
        read(record)


def test_parts_say_what_of_a_content_is_not_trained() -> None:
    parts = [
        {"type": "text", "text": "Good", "train": False},
        {"type": "text", "text": " day", "weight": 1},
        {"type": "text", "text": "", "train": None},
    ]
    (found,) = read({"messages": [USER, {"role": "assistant", "content": parts}]})
    assert found.messages == [USER, ANSWER]
    assert found.parts == {1: {"content": [("Good", False), (" day", True), ("", True)]}}
    wrong = [{"type": "text", "text": "x", "train": "no"}]
    record = {"messages": [USER, {"role": "assistant", "content": wrong}]}
    assert reason(record) == "malformed message"


def test_a_part_that_is_the_thinking_is_not_trained_as_thinking() -> None:
    thought = {"type": "text", "text": "<think>\nHm\n</think>\n", "train": False}
    said = {"type": "text", "text": "Good day"}
    (found,) = read({"messages": [USER, {"role": "assistant", "content": [thought, said]}]})
    assert found.thoughtless == [1]
    reasoning = [{"type": "text", "text": "Hm", "train": False}]
    (found,) = read({"messages": [USER, {**ANSWER, "reasoning_content": reasoning}]})
    assert found.thoughtless == [1]
    assert found.messages[1]["reasoning_content"] == "Hm"


SAID = json.dumps(CALL)
CALLED = {"role": "assistant", "tool_calls": [{"type": "function", "function": CALL}]}
RESULT = {"role": "tool", "content": "r"}


@pytest.mark.parametrize("role", ["function_call", "tool_call"])
@pytest.mark.parametrize("said", [SAID, CALL, [CALL], {"type": "function", "function": CALL}])
def test_a_message_that_is_a_call_by_its_role_is_one(role: str, said: Any) -> None:
    for turn in ({"role": role, "content": said}, {"from": role, "value": said}):
        observed = {"role": "tool_response", "content": "r"}
        assert messages_of({"messages": [USER, turn, observed]}) == [USER, CALLED, RESULT]
    mapped = {"role": "action", "content": said}
    assert messages_of({"messages": [USER, mapped]}, role_map={"action": role})[1] == CALLED


def test_calls_in_a_row_and_what_is_thought_before_are_one_turn() -> None:
    call = {"role": "tool_call", "content": SAID}
    thought = {"role": "assistant", "content": "<think>Hm</think>"}
    both = {**CALLED, "tool_calls": CALLED["tool_calls"] * 2}
    assert messages_of({"messages": [USER, call, call, RESULT]}) == [USER, both, RESULT]
    turns = [USER, thought, call, call, RESULT, ANSWER]
    assert messages_of({"messages": turns}) == [USER, {**both, **thought}, RESULT, ANSWER]
    inside = {**call, "content": "<think>Hm</think>" + SAID}
    assert messages_of({"messages": [USER, inside]}) == [USER, {**CALLED, **thought}]
    for flagged in ([{**thought, "loss": False}, call], [thought, {**call, "loss": False}]):
        assert reason({"messages": [USER, *flagged]}) == "malformed message"
    (found,) = read({"messages": [USER, {**thought, "loss": 0}, {**call, "loss": 0}]})
    assert list(found.untrained) == [1]


@pytest.mark.parametrize(
    "said",
    [
        *("7", "{", "Let me see. " + SAID, None, {"arguments": {}}, {"name": 7}, []),
        *({"name": "f", "parameters": {"x": 1}}, {"type": "function", "function": {}}),
    ],
)
def test_a_message_that_is_no_call_in_spite_of_its_role_is_refused(said: Any) -> None:
    assert reason({"messages": [USER, {"role": "tool_call", "content": said}]}) in (
        "malformed message",
        "empty conversation",
    )


@pytest.mark.parametrize("none", [[], None, "", "[]", np.array([], dtype=object)])
def test_no_calls_are_none(none: Any) -> None:
    said = {**ANSWER, "tool_calls": none, "function_call": None}
    assert messages_of({"messages": [USER, said]}) == [USER, ANSWER]
    assert reason({"messages": [USER, {**said, "content": None}]}) == "malformed message"


@pytest.mark.parametrize("wrong", [{"a": 1}, [7], ["f"], [{"function": {}}], [[]], "{"])
def test_tool_calls_that_are_none_are_refused(wrong: Any) -> None:
    assert reason({"messages": [USER, {**ANSWER, "tool_calls": wrong}]}) == "malformed message"


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    "given",
    [
        {"tools": [json.dumps(TOOL)]},
        {"tools": json.dumps([json.dumps(TOOL)])},
        {"functions": [TOOL["function"]]},
        {"functions": json.dumps([TOOL["function"]])},
        {"tool_defs": [TOOL["function"]]},
        {"tool_defs": [TOOL]},
        {"tools": [TOOL], "functions": [TOOL["function"]]},
    ],
)
def test_tools_are_read_under_any_of_their_names(given: dict[str, Any]) -> None:
    assert read({"messages": [USER], **given})[0].variables == {"tools": [TOOL]}
    (inside,) = read({"messages": [{**SYSTEM, **given}, USER]})
    assert inside.variables == {"tools": [TOOL]}
    assert inside.messages == [SYSTEM, USER]
    of_openai = {"input": {"messages": [USER], **given}, **TOLD}
    of_system = {"prompt": [{**SYSTEM, **given}, USER], **TOLD}
    for record in (of_openai, of_system, {**of_system, "system": "Be kind."}):
        for one in read(record):
            assert one.variables == {"tools": [TOOL]}
            assert not one.messages[0].keys() & given.keys()
    assert of_openai["input"].keys() > given.keys()


def test_tools_that_are_not_clear_are_refused() -> None:
    other = {"name": "g"}
    for record in (
        {"messages": [USER], "tools": [TOOL], "functions": [other]},
        {"messages": [{**SYSTEM, "tools": [TOOL]}, USER], "tools": [other]},
        {"messages": [USER, {**ANSWER, "tools": [TOOL]}]},
        {"messages": [USER], "tools": ["f"]},
    ):
        assert reason(record) == "malformed message"


@pytest.mark.parametrize("message", [{7: "x"}, {("a",): "x"}, {"x": {7: "x"}}, {"x": [{None: 1}]}])
def test_keys_that_are_no_texts_are_refused(message: dict[Any, Any]) -> None:
    assert reason({"messages": [{**USER, **message}, ANSWER]}) == "malformed message"
    assert reason({"messages": [USER], "tools": [message]}) == "malformed message"


def test_values_that_json_has_not_are_refused_where_a_template_may_read_them() -> None:
    day = date(2026, 11, 23)
    assert messages_of({"messages": [{**USER, "timestamp": day}]})[0]["content"] == "Hello"
    call = {"function": {"name": "f", "arguments": {"day": day}}}
    for wrong in ({"content": day}, {"reasoning_content": day}, {"tool_calls": [call]}):
        assert reason({"messages": [{**ANSWER, **wrong}]}) == "malformed message"


def test_weights_are_numbers_from_0() -> None:
    record = {"messages": [USER], "w": np.float64(0.5)}
    assert read(record, weight_key="w")[0].weight == 0.5
    for wrong in (None, -1, "much", float("nan"), 10**400, -(10**5000), "1e999", [10**5000]):
        assert reason({**record, "w": wrong}, weight_key="w") in ("no weight", "no number")


@pytest.mark.parametrize("wrong", [{"weight": 0.5}, {"weight": "0"}, {"train": "false"}])
def test_a_message_is_trained_or_not(wrong: dict[str, Any]) -> None:
    assert reason({"messages": [USER, {**ANSWER, **wrong}]}) == "malformed message"
    for said, untrained in (({"weight": 0.0}, [1]), ({"train": True}, []), ({"weight": None}, [])):
        (found,) = read({"messages": [USER, {**ANSWER, **said}]})
        assert list(found.untrained) == untrained


def test_a_message_without_a_role_says_its_keys() -> None:
    with pytest.raises(ConversationError, match=r"message 1 .*speaker, text"):
        read({"messages": [USER, {"speaker": "a", "text": "b"}]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        *("messages", "conversations", "prompt", "completion", "chosen", "rejected", "system"),
        *("instruction", "input", "output", "tools", "documents", "chat_template_kwargs"),
    ]
)
MESSAGES = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "from", "value", "tool_calls", "images", "name"]),
        st.sampled_from(["user", "assistant", "human", "gpt", "function_call"]) | JSON,
        max_size=4,
    ),
    max_size=4,
)


@given(st.dictionaries(KEYS, JSON | MESSAGES, max_size=5))
def test_any_record_is_read_or_refused(record: dict[str, Any]) -> None:
    try:
        found = read(record)
    except ConversationError:
        return
    for conversation in found:
        assert conversation.messages
        assert all(isinstance(one["role"], str) for one in conversation.messages)
