"""The options of encode as keyword arguments, for type checkers; EncodeOptions describes them.

A type checker cannot derive them from the dataclass, so a test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.tokenizers import TokenizerFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokpack.chat.rendered import Rewriting, ToolArguments, Truncate
    from tokpack.encoding.options import DType, Empty, OnError, SpecialTokens


class PlanRequest(TokenizerFiles, total=False):
    """The options of ``tokpack.plan`` but ``keys``."""

    output_names: Mapping[str, str] | None
    vocab_size: int | None
    special_tokens_count: int | None
    append_eod: bool | None
    eod_token: str | int | None
    prepend_bos: bool
    bos_token: str | int | None
    add_special_tokens: bool
    dtype: DType
    special_tokens: SpecialTokens
    on_error: OnError
    max_rejects: int | None
    where: str | None
    map: str | Callable[[Any], Any] | None
    map_version: str | None
    empty: Empty
    ftfy: bool
    split_sentences: bool
    keep_newlines: bool
    lang: str
    limit: int | None
    input_format: str
    hf_split: str | None
    json_path: str | None
    overwrite: bool
    keep: Sequence[str]
    trace: bool
    max_document_bytes: int

    chat: bool
    chat_template: str | None
    template_var: Mapping[str, Any] | None
    messages_key: str | None
    prompt_key: str | None
    role_map: Mapping[str, str] | None
    tool_arguments: ToolArguments
    loss: str
    loss_on_eot: bool
    loss_on_tool_calls: bool
    loss_on_thinking: bool
    loss_on_empty_thinking: bool
    append_eot: bool
    rewriting: Rewriting
    max_length: int | None
    truncate: Truncate
    pairs: Sequence[str] | None
    weight_key: str | None


class EncodeRequest(PlanRequest, total=False):
    """The options of ``tokpack.encode`` but ``keys``."""

    files: int | None
    workers: int
    scratch: str | None
    report_to: str | None
