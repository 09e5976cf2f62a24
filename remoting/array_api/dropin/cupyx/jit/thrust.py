"""Thrust in a kernel: algorithms of the thread that calls them, on arrays and shared memory.

Ranges are `x.begin()` and `x.end()` of an array with one dimension, or addresses of shared memory.
`seq` and `device` mean the same in a kernel. Names and parameters are CuPy's.
"""

from __future__ import annotations

from typing import Any

from cupy._door import absent as _absent

from cupyx.jit import _functions
from cupyx.jit._kinds import BOOL as _BOOL
from cupyx.jit._kinds import INT32 as _INT32
from cupyx.jit._kinds import VOID as _VOID
from cupyx.jit._kinds import Const as _Const
from cupyx.jit._kinds import Iterator as _Iterator
from cupyx.jit._kinds import Kind as _Kind
from cupyx.jit._kinds import Pack as _Pack
from cupyx.jit._kinds import Pointer as _Pointer
from cupyx.jit._kinds import Scalar as _Scalar
from cupyx.jit._kinds import Value as _Value
from cupyx.jit._kinds import value_of as _value_of

_RESULTS: dict[str, _Kind] = {"void": _VOID, "bool": _BOOL, "int": _INT32}

_FIND = "first last=first value.first | comp!"
_FIND_EACH = "first last=first value_first~first value_last=value_first >result | comp!"
_SETS = "first1 last1=first1 first2 last2=first2 >result | comp! : result"
_KEYS = "keys_first1 keys_last1=keys_first1 keys_first2 keys_last2=keys_first2 values_first1"
_KEYS_OUT = ">keys_result >values_result | comp! : keys_result values_result"

# Parameters behind the policy, and the result behind a colon. `a` is an iterator, `>a` one whose
# elements are assigned to, `a=b` one of b's type, `a~b` one with elements of b's type, `a.b` a
# number of the type of b's elements, `a*` any number, `a*b` one of b's type; `a!` must be left out.
# Those behind the bar are optional. A result has a parameter's type; a sum has that of `init`, or
# of the elements.
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "adjacent_difference": ("first last=first >result~first | binary_op! : result",),
    "binary_search": (f"{_FIND} : bool", f"{_FIND_EACH} : result"),
    "copy": ("first last=first >result~first : result",),
    "count": ("first last=first value* : int",),
    "equal": ("first1 last1=first1 first2~first1 | binary_pred! : bool",),
    "equal_range": ("first last=first value.first | comp! : first first",),
    "exclusive_scan": ("first last=first >result~first | init* binary_op! : result",),
    "exclusive_scan_by_key": (
        "first1 last1=first1 first2 >result~first2 | init* binary_pred! binary_op! : result",
    ),
    "fill": (">first last=first value* : void",),
    "find": ("first last=first value* : first",),
    "gather": ("map_first map_last=map_first input_first >result~input_first : result",),
    "inclusive_scan": ("first last=first >result~first | binary_op! : result",),
    "inclusive_scan_by_key": (
        "first1 last1=first1 first2 >result~first2 | binary_pred! binary_op! : result",
    ),
    "inner_product": ("first1 last1=first1 first2~first1 init* | binary_op1! binary_op2! : init",),
    "is_sorted": ("first last=first | comp! : bool",),
    "is_sorted_until": ("first last=first | comp! : first",),
    "lower_bound": (f"{_FIND} : first", f"{_FIND_EACH} : result"),
    "mismatch": ("first1 last1=first1 first2~first1 | pred! : first1 first2",),
    "reduce": ("first last=first | init* binary_op! : sum",),
    "reduce_by_key": (
        "keys_first keys_last=keys_first values_first >keys_output >values_output "
        "| binary_pred! binary_op! : keys_output values_output",
    ),
    "remove": (">first last=first value* : first",),
    "remove_copy": ("first last=first >result value* : result",),
    "replace": (">first last=first old_value* new_value*old_value : void",),
    "replace_copy": ("first last=first >result old_value* new_value*old_value : result",),
    "reverse": (">first last=first : void",),
    "reverse_copy": ("first last=first >result : result",),
    "scatter": ("first last=first map >result : void",),
    "sequence": (">first last=first | init* step*init : void",),
    "set_difference": (_SETS,),
    "set_difference_by_key": (f"{_KEYS} values_first2 {_KEYS_OUT}",),
    "set_intersection": (_SETS,),
    "set_intersection_by_key": (f"{_KEYS} {_KEYS_OUT}",),
    "set_symmetric_difference": (_SETS,),
    "set_symmetric_difference_by_key": (f"{_KEYS} values_first2 {_KEYS_OUT}",),
    "set_union": (_SETS,),
    "set_union_by_key": (f"{_KEYS} values_first2 {_KEYS_OUT}",),
    "sort": (">first last=first | comp! : void",),
    "sort_by_key": (">keys_first keys_last=keys_first >values_first | comp! : void",),
    "stable_sort": (">first last=first | comp! : void",),
    "stable_sort_by_key": (">keys_first keys_last=keys_first >values_first | comp! : void",),
    "swap_ranges": (">first1 last1=first1 >first2 : first2",),
    "unique": (">first last=first | binary_pred! : first",),
    "unique_by_key": (
        ">keys_first keys_last=keys_first >values_first | binary_pred! : keys_first values_first",
    ),
    "upper_bound": (f"{_FIND} : first", f"{_FIND_EACH} : result"),
}


class _Policy:
    """Where an algorithm runs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<policy {self.name} of cupyx.jit.thrust>"


class _Parameter:
    """One word of the table."""

    def __init__(self, word: str) -> None:
        self.is_written = word.startswith(">")
        self.name, self.rule, self.other = word.lstrip(">"), "", ""
        for sign in "=~.*!":
            if sign in self.name:
                self.name, _, self.other = self.name.partition(sign)
                self.rule = sign
                return

    def check(self, value: _Value, others: dict[str, _Value]) -> None:
        """Raise a TypeError for a value that is not what the table says."""
        kind = value.kind
        if self.rule in (".", "*"):
            if not isinstance(kind, _Scalar):
                raise TypeError(f"`{self.name}` is a number, and not of {kind}")
        elif not isinstance(kind, (_Pointer, _Iterator)) or not isinstance(kind.element, _Scalar):
            raise TypeError(
                f"`{self.name}` is an iterator, as begin() of an array gives it, or an address of "
                f"shared memory, and not of {kind}"
            )
        elif self.is_written and not kind.is_stored:
            raise TypeError(f"`{self.name}` is assigned to, which a {kind} is not made for")
        if not self.other:
            return
        if self.other not in others:
            raise TypeError(f"`{self.name}` is taken with `{self.other}` only")
        wanted: _Kind = others[self.other].kind
        if self.rule in ".~":
            wanted = _element(wanted)
            kind = _element(kind) if self.rule == "~" else kind
        if kind != wanted:
            raise TypeError(
                f"`{self.name}` and `{self.other}` must have the same type: this is {kind}, and "
                f"{wanted} is needed"
            )


def _element(kind: _Kind) -> _Kind:
    return kind.element if isinstance(kind, (_Pointer, _Iterator)) else kind


class _Signature:
    """What a function takes, and what it gives."""

    def __init__(self, text: str) -> None:
        words, _, result = text.partition(":")
        needed, _, optional = words.partition("|")
        self.parameters = [_Parameter(word) for word in (*needed.split(), *optional.split())]
        names = [each.name for each in self.parameters]
        count = len(needed.split())
        self.names = f"exec_policy {' '.join(names[:count])} | {' '.join(names[count:])}"
        self.count = 1 + len(names)
        self._result = result.split()

    def result(self, given: dict[str, _Value]) -> _Kind:
        """Return the type of the result."""
        if self._result == ["sum"]:
            return given["init"].kind if "init" in given else _element(given["first"].kind)
        kinds = tuple([_RESULTS.get(word) or given[word].kind for word in self._result])
        return kinds[0] if len(kinds) == 1 else _Pack(kinds)


class _Function(_functions.Builtin):
    """An algorithm."""

    def __init__(self, name: str) -> None:
        self.name = f"thrust.{name}"
        self._code = f"gpjit::rows::{name}"
        self._signatures = [_Signature(text) for text in _FUNCTIONS[name]]

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> _Value:
        """Return the call."""
        many = [each for each in self._signatures if len(args) + len(kwargs) <= each.count]
        signature = (many or self._signatures[-1:])[0]
        given = _functions.bound(self.name, signature.names, args, kwargs)
        policy = given.pop("exec_policy")
        if not isinstance(policy, _Const) or not isinstance(policy.obj, _Policy):
            raise TypeError(f"{self.name}() takes a policy first: `thrust.seq` or `thrust.device`")
        if policy.obj is host:
            raise TypeError("a kernel cannot work on the host: take `thrust.seq`")
        values: dict[str, _Value] = {}
        for each in signature.parameters:
            item = given.get(each.name, _Const(None))
            if isinstance(item, _Const) and item.obj is None:
                continue
            if each.rule == "!":
                raise NotImplementedError(f"{each.name} option is not supported")
            value = values[each.name] = _value_of(item, unit.mode)
            each.check(value, values)
        codes = ", ".join([value.code for value in values.values()])
        return _Value(f"{self._code}({codes})", signature.result(values))


class _Maker(_functions.Builtin):
    """Makes an iterator without memory."""

    def __init__(self, name: str, form: str) -> None:
        self.name = f"thrust.{name}"
        self._form = form

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> _Value:
        """Return the iterator."""
        given = _functions.bound(self.name, "x | i", args, kwargs)
        if "i" in given and given["i"] != _Const(None):
            raise NotImplementedError("index_type is not supported")
        value = _value_of(given["x"], unit.mode)
        if not isinstance(value.kind, _Scalar):
            raise TypeError(f"{self.name}() takes a number, and this is {value.kind}")
        kind = _Iterator(value.kind, self._form)
        return _Value(f"{kind.c}{{{value.code}}}", kind)


host = _Policy("host")
device = _Policy("device")
seq = _Policy("seq")
make_constant_iterator = _Maker("make_constant_iterator", "Constant")
make_counting_iterator = _Maker("make_counting_iterator", "Counting")
globals().update({name: _Function(name) for name in _FUNCTIONS})

__getattr__ = _absent.lookup(__name__)
