"""The face of a room: its names, whose modules are loaded when they are first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def face(room: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], list[str]]:
    """``__getattr__`` and ``__all__`` for the ``__init__`` of ``room``.

    ``names`` has for each module of the room the names that it gives, between blanks. A name must
    not be that of a module, which would take its place once it is loaded.
    """
    modules = {name: module for module, given in names.items() for name in given.split()}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(f"{room}.{modules[name]}"), name)

    return get, list(modules)
