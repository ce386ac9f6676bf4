"""A continuation of a text, from the weights of a checkpoint."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from itertools import islice, takewhile
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokpack.errors import TokenizerError, UsageError
from tokpack.tokenizers import Frame

from .model import Stage
from .parallel import Topology, device_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tokpack.tokenizers import Tokenizer

    from .checkpoints.huggingface import Weights


class LanguageModel(Stage):
    """A whole model in one process that returns logits instead of a loss."""

    def forward(self, tokens: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Logits float32 [B, S, vocab_size] of tokens int64 [B, S].

        ``more`` may have ``position_ids`` int64 [B, S], and ``cu_seqlens`` of documents, as a batch
        of training has them. UsageError for more positions than the model has learned.
        """
        most, positions = self.model.max_position_embeddings, tokens.shape[1]
        if "position_ids" in more:
            positions = int(more["position_ids"].max()) + 1
        if positions > most and self.model.position_embedding_type == "learned_absolute":
            raise UsageError(f"{positions:,} positions: the model has learned only {most:,}")
        return self.logits({"tokens": tokens, **more})


@torch.no_grad()
def load_model(weights: Weights, device: torch.device) -> LanguageModel:
    """The whole model in one process, ready to compute logits."""
    with torch.device(device):
        stage = LanguageModel(weights.model, Topology(device=device))
    for name, parameter in stage.named_parameters():
        parameter.copy_(stage.own_part(name, weights.read(name)["parameter"]))
    return stage.eval()


@torch.no_grad()
def continue_tokens(
    stage: Stage,
    tokens: list[int],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    is_token: Callable[[int], bool] = lambda _: True,
) -> Iterator[int]:
    """The tokens that follow, one by one, without end; the model sees as many of the last ones as
    it has positions.

    With ``temperature`` 0 the likeliest token is taken; with ``top_k`` above 0 one of the ``top_k``
    likeliest is drawn. Ids that are no token, such as rows that pad a vocabulary, are never taken.
    The same seed gives the same tokens.
    """
    device, generator = stage.topology.device, torch.Generator().manual_seed(seed)
    seen = list(tokens)
    absent: list[int] = []  # ids that were drawn, but are no token

    def draw(logits: torch.Tensor) -> int:
        """An id that is not in ``absent``."""
        logits[absent] = -torch.inf
        if temperature == 0:
            return int(logits.argmax())
        if 0 < top_k < len(logits):
            logits[logits < logits.topk(top_k).values[-1]] = -torch.inf
        chances = torch.softmax(logits / temperature, 0)
        return int(torch.multinomial(chances, 1, generator=generator))

    while True:
        window = torch.tensor([seen[-stage.model.max_position_embeddings :]], device=device)
        logits = stage.logits({"tokens": window})[0, -1].float().cpu()
        while not is_token(token := draw(logits.clone())):
            absent.append(token)
        seen.append(token)
        yield token


def generate(
    weights: Weights,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int = 100,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    device: str = "auto",
) -> Iterator[str]:
    """The continuation of ``prompt``, piece by piece: ``tokens`` tokens, or fewer if an EOD comes
    before.

    An empty prompt begins a document. Raises UsageError, before any text, if the tokenizer does not
    fit the model.
    """
    if tokenizer.vocab_size > weights.model.vocab_size:
        raise UsageError(
            f"tokenizer {tokenizer.name} has {tokenizer.vocab_size} ids, the model "
            f"{weights.model.vocab_size}: it was trained with another tokenizer"
        )
    data, end = np.frombuffer(prompt.encode(), np.uint8), tokenizer.eod_id
    encoder = tokenizer.encoder(dtype="int32", append_eod=False)
    ids = encoder.encode(data, np.array([[0, len(data)]], np.int64)).ids.tolist()
    ids = [*Frame.of(weights.tokenizer).before, *ids]
    if not ids:
        if end is None:
            raise UsageError("the prompt is empty, and the tokenizer has no token to begin with")
        ids = [end]
    stage = load_model(weights, device_of(device))

    @cache
    def is_token(number: int) -> bool:
        with suppress(TokenizerError):
            tokenizer.decode_bytes([number])
            return True
        return False

    drawn = continue_tokens(
        stage, ids, temperature=temperature, top_k=top_k, seed=seed, is_token=is_token
    )
    return _texts(tokenizer, takewhile(lambda token: token != end, islice(drawn, tokens)))


def _texts(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """The text that each token adds; nothing while a character is incomplete."""
    seen: list[int] = []
    done = text = ""
    for token in tokens:
        seen.append(token)
        text = tokenizer.decode(seen)
        if not text.endswith("\ufffd"):
            yield text[len(done) :]
            done = text
    yield text[len(done) :]
