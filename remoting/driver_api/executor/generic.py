"""Calls that need nothing but their parameters, as schema/calls.py describes them."""

import ctypes
from collections.abc import Callable
from typing import Any

from gpupool.remoting.driver_api.executor.client_state import Client, HandlerGroup
from gpupool.remoting.driver_api.executor.direct import Direct
from gpupool.remoting.driver_api.executor.sync_waiter import FREES_PATIENCE_S
from gpupool.remoting.driver_api.schema import table
from gpupool.remoting.driver_api.schema.calls import ALIASES, CALLS, WAIT_FOR_VALUE
from gpupool.remoting.driver_api.schema.layout import Field, Record

ENDS_WAIT = "cuEventElapsedTime"
"""A result of this call proves both events complete, so the data before them must be in place."""

FORMER_NAMES = {symbol: name for name, symbol in ALIASES.items()}
"""By the names that a driver may be too old for."""


class Generic(HandlerGroup):
    """Executes ``CALLS``."""

    def __init__(
        self, client: Client, direct: Direct, replaced: dict[str, Callable[..., None]]
    ) -> None:
        """Prepare a handler for each call: its ``replaced`` entry, else the driver's function."""
        super().__init__(client)
        self._direct = direct
        for (op, (name, sent, asked)), (symbol, row) in zip(
            table.CALLS.items(), CALLS.items(), strict=True
        ):
            fields = tuple(Field(f"word_{at}", "u64") for at in range(len(sent.split())))
            run = replaced.get(name) or self._call(symbol, row.split()[1:])
            self.calls[op] = (Record(name, fields, asked), run)

    def _call(self, symbol: str, tokens: list[str]) -> Callable[..., Any]:
        """Return a method that converts the words of a record and calls the driver."""
        made = next((token[1] for token in tokens if token[0] == "+"), "")
        ended = next((token[1] for token in tokens if token[0] == "!"), "")
        waits, ends_wait = symbol.startswith(WAIT_FOR_VALUE), symbol.startswith(ENDS_WAIT)
        if not self._direct.has(symbol):
            symbol = FORMER_NAMES.get(symbol, symbol)

        def run(*words: int) -> bytes:
            if waits:
                self.waiter.freeing.wait_for_calls(FREES_PATIENCE_S)
            given, arguments, output = iter(words), list[Any](), ctypes.c_uint64(0)
            number = 0
            for word in tokens:
                if word[0] in "+!":
                    number = next(given)
                if word[0] in "+>":
                    arguments.append(output)
                elif word[0] == "!":
                    arguments.append(self.objects[ended][number])
                else:
                    arguments.append(0 if word == "z" else self._argument(word, next(given)))
            self._direct.call(symbol, *arguments)
            if ends_wait:
                self.waiter.push()
            if ended:
                del self.objects[ended][number]
                for tell in self.client.ended:
                    tell(ended, number)
                self.client.end_issuing(ended, number)
            if made:
                self.client.keep(made, number, output.value)
            return bytes(output) if ">" in tokens else b""

        return run

    def _argument(self, kind: str, word: int) -> int:
        if kind == "f":
            return self.client.functions[word].handle
        if kind in self.objects:
            return self.objects[kind][word]
        return self.client.ordinals[self.client.index(word)] if kind == "d" else word
