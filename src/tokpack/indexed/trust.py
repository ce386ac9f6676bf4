"""What a manifest may name: files in its own folder, and below what the user trusts.

A manifest may be anybody's. Without this rule one that is merely looked at could have a command ask
hosts with the user's credentials.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from tokpack.display import brief
from tokpack.errors import FormatError
from tokpack.stores import is_url, joined
from tokpack.stores.urls import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable

TRUST = "TOKPACK_TRUST"  # folders and URLs, with commas between


def piece_path(manifest: str, prefix: str) -> str:
    """Where the piece lies that a manifest calls ``prefix``.

    FormatError where that is neither beside the manifest nor below a place of $TOKPACK_TRUST.
    """
    path = _plain(joined(os.path.dirname(manifest), prefix))
    if not is_trusted(manifest, path):
        raise FormatError(
            f"{manifest}: its piece {brief(prefix)} lies outside of the manifest's folder, so it "
            f"is not opened; if you trust who made it, set {trust_setting([path])}"
        )
    return path


def is_trusted(manifest: str, path: str) -> bool:
    """Whether a file may be read because a manifest names it."""
    trusted = (os.path.expanduser(text.strip()) for text in os.environ.get(TRUST, "").split(","))
    roots = (os.path.dirname(manifest) or os.curdir, *filter(None, trusted))
    return any(_is_below(path, root) for root in roots)


def trust_setting(paths: Iterable[str]) -> str:
    """The variable with which a manifest may name these paths."""
    folders = {os.path.dirname(path if is_url(path) else os.path.abspath(path)) for path in paths}
    outermost = [
        one for one in folders if not any(_is_below(one, other) for other in folders - {one})
    ]
    return f"{TRUST}={shlex.quote(','.join(sorted(outermost)))}"


def _plain(path: str) -> str:
    """A path without ``..``, which behind a link would lead elsewhere."""
    return path if is_url(path) or ".." not in path.split("/") else os.path.normpath(path)


def _is_below(path: str, root: str) -> bool:
    if is_url(path) != is_url(root):
        return False
    if not is_url(path):
        top = os.path.join(os.path.abspath(root), "")
        return os.path.abspath(path).startswith(top)
    place, top_place = place_of(path), place_of(root)
    folder = f"{top_place.key.rstrip('/')}/" if top_place.key else ""
    inside = place[:2] == top_place[:2] and place.key.startswith(folder)
    return inside and ".." not in place.key.split("/")
