"""The ten colours of the pages differ, also for those who see fewer, and stand out of the page."""

from __future__ import annotations

import re
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tokpack.look.page import shared
from tokpack.look.plots import SERIES

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

LEAST = 9.5  # in OKLab, times 100; the cycle of ten that matplotlib has for this reaches 7.0
# How people without one kind of cone see linear RGB: Machado, Oliveira and Fernandes 2009.
SIGHTS = {
    "all cones": np.eye(3),
    "no long": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no middle": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "no short": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def linear(colour: str) -> Floats:
    """Linear RGB of #rgb or #rrggbb."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    value = np.array([int(digits[i : i + 2], 16) for i in (0, 2, 4)]) / 255
    light: Floats = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    return light


def oklab(rgb: Floats) -> Floats:
    """Linear RGB where equal distances look equal: Ottosson 2020."""
    cones = np.cbrt(
        np.array(
            [
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ]
        )
        @ np.clip(rgb, 0, 1)
    )
    lab: Floats = (
        np.array(
            [
                [0.2104542553, 0.7936177850, -0.0040720468],
                [1.9779984951, -2.4285922050, 0.4505937099],
                [0.0259040371, 0.7827717662, -0.8086757660],
            ]
        )
        @ cones
    )
    return lab


@pytest.fixture(params=["light", "dark"])
def colours(request: pytest.FixtureRequest) -> dict[str, str]:
    """The colours of the style sheet, by their names."""
    light, dark = re.findall(r":root \{(.*?)\}", shared("page.css"), re.DOTALL)[:2]
    found = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]+)", light))
    return (
        found
        if request.param == "light"
        else found | dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]+)", dark))
    )


@pytest.mark.parametrize("sight", SIGHTS)
def test_ten_colours_differ(colours: dict[str, str], sight: str) -> None:
    series = [colours[f"s{n}"] for n in range(SERIES)]
    seen = [oklab(SIGHTS[sight] @ linear(colour)) for colour in series]
    near = {
        (i, j): 100 * float(np.linalg.norm(a - b))
        for (i, a), (j, b) in combinations(enumerate(seen), 2)
    }
    assert min(near.values()) > LEAST, min(near, key=near.__getitem__)


def test_they_stand_out(colours: dict[str, str]) -> None:
    def contrast(one: str, other: str) -> float:  # WCAG 2
        low, high = sorted(float(linear(c) @ (0.2126, 0.7152, 0.0722)) for c in (one, other))
        return (high + 0.05) / (low + 0.05)

    for number in range(SERIES):
        assert contrast(colours[f"s{number}"], colours["back"]) > 2.5
    for text in ("ink", "soft", "s0"):  # links are s0
        for ground in ("back", "page"):
            assert contrast(colours[text], colours[ground]) > 4.5
