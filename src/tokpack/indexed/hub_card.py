"""The card of a repository of the hub: what its README.md says of the datasets in it.

Each dataset has a section of its own between two comments, made from its manifest. What people
write around the sections stays, and a README.md without any is not touched.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from tokpack.errors import TokpackError
from tokpack.quantities import bytes_text
from tokpack.stores.storage import storage_of
from tokpack.stores.urls import hub_repository

if TYPE_CHECKING:
    from tokpack.indexed.manifest import Manifest

_MOST_BYTES = 1 << 20  # of a README.md that is read
_logger = logging.getLogger(__name__)

# The hub would show the manifests, which are JSON, as the data.
_HEAD = """\
---
viewer: false
tags:
- tokpack
- megatron
task_categories:
- text-generation
---

# {name}

Tokens for training language models, in the .bin/.idx format of Megatron-LM, made by tokpack.
Each dataset is a prefix, whose .json tells of its inputs, options and checksums.

    hf download {repository} --repo-type dataset --local-dir .
"""

_SECTION = """\
<!-- tokpack {prefix} -->
## {prefix}

| | |
|---|---|
| documents | {documents:,} |
| tokens | {tokens:,}, as {dtype} |
| text | {text} |
| tokenizer | {tokenizer}, {kind}, sha256 {sha256} |

    from tokpack import MMapIndexedDataset
    MMapIndexedDataset("{url}")
<!-- /tokpack {prefix} -->
"""


def write_hub_card(url: str, manifest: Manifest) -> None:
    """Tell of the dataset ``url`` in the card of its repository; nothing elsewhere than on the hub.

    The dataset is whole without it: what goes wrong is logged.
    """
    repository = hub_repository(url)
    if not repository:
        return
    root, _, inside = url.partition(repository)
    revision, _, prefix = inside.partition("/")
    path = f"{root}{repository}{revision}/README.md"
    storage = storage_of(path)
    try:
        (content,) = storage.contents([path], _MOST_BYTES)
        old = None if content is None else content.decode()
        new = with_section(old, repository, prefix, section(url, prefix, manifest))
        if new != old:
            storage.put(path, new.encode(), "overwrite")
    except (TokpackError, UnicodeDecodeError) as error:
        _logger.warning("%s: the card does not tell of %s: %s", path, prefix, error)


def section(url: str, prefix: str, manifest: Manifest) -> str:
    """What the card says of one dataset."""
    tokenizer = manifest.tokenizer
    name = str(tokenizer.get("name") or "unknown").replace("\\", "/").rpartition("/")[2]
    return _SECTION.format(
        prefix=prefix,
        url=url,
        documents=manifest.documents,
        tokens=manifest.tokens,
        dtype=manifest.dtype,
        text=bytes_text(manifest.text_bytes),
        tokenizer=name,
        kind=tokenizer.get("kind") or tokenizer.get("type") or "of a kind that is not known",
        sha256=tokenizer.get("sha256") or "unknown",
    )


def with_section(card: str | None, repository: str, prefix: str, text: str) -> str:
    """A card with the section ``text``, in the place of the former one, else at its end."""
    if card is None:
        name = repository.partition("/")[2]
        return f"{_HEAD.format(name=name, repository=repository)}\n{text}"
    of_it = re.compile(
        rf"<!-- tokpack {re.escape(prefix)} -->.*?<!-- /tokpack {re.escape(prefix)} -->\n?", re.S
    )
    if of_it.search(card):
        return of_it.sub(lambda _: text, card, count=1)
    return f"{card.rstrip()}\n\n{text}" if "<!-- tokpack " in card else card
