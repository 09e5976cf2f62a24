"""Kernels that keep something between their launches: a variable of their module.

Nobody can ask a module for its variables, so its source is searched. What looks as if it kept
something is taken for that.
"""

import re
from collections.abc import Iterable

_QUIET = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.DOTALL
)
_WITH_BRACKETS = re.compile(
    r"\b(?:__align__|alignas|__attribute__|__launch_bounds__|decltype|__declspec)\s*"
    r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
)
_OPERATOR = re.compile(r"\boperator\s*[^\s\w(]+")
_HIDDEN = re.compile(r"#\s*define\b[^\n]*\b(?:__device__|__constant__|__managed__|static)\b[^\n]*")
_FUNCTION_WORD = re.compile(r"\b(?:inline|__inline__|__forceinline__|__noinline__)\b")
_ALWAYS = re.compile(r"\b__constant__\b|\b__managed__\b")
_DECLARED = re.compile(r"\b(?:__device__|static)\b([^;{}()]*?)[;={\[]")
_CONSTANT = re.compile(r"\b(?:const|constexpr|__shared__)\b")
_IN_PTX = re.compile(r"\.global\s+\.")
_ALL_ON_DEVICE = ("--device-as-default-execution-space", "-default-device")


def keeps_state(texts: Iterable[str], options: Iterable[str] = ()) -> bool:
    """Say whether a kernel of these sources may have variables that outlive a launch."""
    if any(option in _ALL_ON_DEVICE for option in options):
        return True  # every variable of the source is one, by whatever name
    return any(map(_has_variables, texts))


def _has_variables(text: str) -> bool:
    joined = re.sub(r"(?:\\|\?\?/)[ \t]*\r?\n", " ", text)
    if _IN_PTX.search(joined):
        return True
    plain = _OPERATOR.sub("operator", _WITH_BRACKETS.sub(" ", _QUIET.sub(" ", joined)))
    if _ALWAYS.search(plain):
        return True
    if any(not _FUNCTION_WORD.search(found[0]) for found in _HIDDEN.finditer(plain)):
        return True
    return any(map(_may_change, _DECLARED.finditer(plain)))


def _may_change(found: re.Match[str]) -> bool:
    """Say whether a declaration makes a variable that somebody may write."""
    constant = _CONSTANT.search(found[1]) is not None and "*" not in found[1]
    return not constant or found[0].startswith("__device__")
