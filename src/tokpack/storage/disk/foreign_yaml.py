"""A reader for YAML that anybody may have written: bounded in size, depth, digits and aliases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from tokpack.display import message
from tokpack.errors import FormatError
from tokpack.storage.disk.foreign import MAX_DEPTH, MAX_DIGITS, read_whole

if TYPE_CHECKING:
    import os

MAX_YAML_BYTES = 1 << 24


MAX_NODES = 500_000  # values; an alias counts as everything that it refers to


_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def read_yaml(path: str | os.PathLike[str], loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """The value of a YAML file. InputError if it cannot be read; raises as `parse_yaml`, too."""
    return parse_yaml(read_whole(path, most=MAX_YAML_BYTES), path, loader)


def parse_yaml(
    text: str | bytes,
    name: str | os.PathLike[str],
    loader: type[yaml.SafeLoader] = yaml.SafeLoader,
) -> Any:
    """The value of a YAML text; ``name`` is that of its file. FormatError, of one line.

    A value that contains itself is refused, and so is one that is too large, too deep, or has too
    many digits.
    """
    reader = None
    try:
        reader = _bounded(loader)(text)
        node = reader.get_single_node()
        if node is None:
            return None
        _measure(node, {})
        return reader.construct_document(node)
    except RecursionError:
        raise FormatError(f"{name!s}: YAML nested too deep") from None
    except yaml.YAMLError as error:
        raise FormatError(f"{name!s}: not YAML: {message(' '.join(str(error).split()))}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Errors of the library for a tag that does not fit its value, as in !!bool 7.
        reason = message(" ".join(str(error).split()))
        raise FormatError(f"{name!s}: not YAML: {reason or type(error).__name__}") from None
    finally:
        if reader is not None:
            reader.dispose()


def _bounded(loader: type[yaml.SafeLoader]) -> type[yaml.SafeLoader]:
    """A loader that stops after MAX_NODES values, so that no more are in memory."""

    class Bounded(loader):  # type: ignore[misc, valid-type]
        _nodes = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self._nodes += 1
            if self._nodes > MAX_NODES:
                raise _too_large()
            return super().compose_node(parent, index)

    return Bounded


def _too_large() -> ValueError:
    return ValueError(f"more than {MAX_NODES:,} values, each alias counted as what it stands for")


def _measure(node: yaml.Node, sizes: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """The number of values in a node, with aliases expanded, and its depth.

    ``sizes`` has the result for each finished node, and None for those in progress.
    ValueError if the node is too large or too deep, or contains itself.
    """
    if id(node) in sizes:
        measured = sizes[id(node)]
        if measured is None:
            raise ValueError("an alias refers to something that contains it")
        return measured
    sizes[id(node)] = None
    size, depth = 1, 0
    if isinstance(node, yaml.ScalarNode):
        if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            raise ValueError(f"a number of {len(node.value):,} digits: {node.value[:20]}...")
        # YAML escapes can write a NUL or half a surrogate pair, which no file name can have.
        if "\0" in node.value:
            raise ValueError("a NUL in a text")
        node.value.encode("utf-8", "surrogateescape")
    else:
        for child in node.value:
            for part in child if isinstance(child, tuple) else (child,):
                below = _measure(part, sizes)
                size, depth = size + below[0], max(depth, below[1] + 1)
    if size > MAX_NODES:
        raise _too_large()
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    sizes[id(node)] = size, depth
    return size, depth
