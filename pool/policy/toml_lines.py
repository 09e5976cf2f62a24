"""The line of each key in a TOML document, which ``tomllib`` does not report.

The document has been parsed before, so this scanner may trust its syntax. It follows tables, arrays
of tables, dotted and quoted keys, and looks into arrays and inline tables. A path is the keys down
to a value, with an index wherever there is an array: ``("window", 0, "class", "x", "max_gpus")``.
"""

import re
import tomllib

Path = tuple[str | int, ...]

BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
SPACE = re.compile(r"[ \t]*")
BARE = re.compile(r"[A-Za-z0-9_-]+")
BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
LITERAL = re.compile(r"'[^'\n]*'")
LONG_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}(?!")', re.DOTALL)
LONG_LITERAL = re.compile(r"'''.*?'{3,5}(?!')", re.DOTALL)
SCALAR = re.compile(r"[^,\]}#\n]*")


def key_lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of every table, key and element of a valid document."""
    return _Scanner(text.replace("\r\n", "\n")).run()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line, self._counted = 1, 0
        self._arrays: dict[Path, int] = {}
        self._lines: dict[Path, int] = {}

    def run(self) -> dict[Path, int]:
        table: Path = ()
        self._match(BLANK)
        while self._at < len(self._text):
            line = self._here()
            if self._skip("[["):
                *parents, last = self._keys()
                array = (*self._resolve(parents), last)
                self._arrays[array] = self._arrays.get(array, -1) + 1
                table = (*array, self._arrays[array])
                self._note(table, line)
                self._skip("]]")
            elif self._skip("["):
                table = self._resolve(self._keys())
                self._note(table, line)
                self._skip("]")
            else:
                self._pair(table)
            self._match(BLANK)
        return self._lines

    def _pair(self, table: Path) -> None:
        line = self._here()
        path = (*table, *self._keys())
        self._note(path, line)
        self._skip("=")
        self._match(SPACE)
        self._value(path)

    def _value(self, path: Path) -> None:
        if self._skip("["):
            self._elements(path)
        elif self._skip("{"):
            self._match(BLANK)
            while not self._skip("}"):
                self._pair(path)
                self._match(BLANK)
                self._skip(",")
                self._match(BLANK)
        else:
            for pattern in (LONG_BASIC, LONG_LITERAL, BASIC, LITERAL, SCALAR):
                if self._match(pattern):
                    return

    def _elements(self, path: Path) -> None:
        index = 0
        self._match(BLANK)
        while not self._skip("]"):
            self._note((*path, index), self._here())
            self._value((*path, index))
            index += 1
            self._match(BLANK)
            self._skip(",")
            self._match(BLANK)

    def _keys(self) -> list[str]:
        """Return the parts of a dotted key."""
        keys: list[str] = []
        while True:
            self._match(SPACE)
            word = self._match(BASIC) or self._match(LITERAL)
            if word:
                keys.append(str(tomllib.loads(f"k={word}")["k"]))
            else:
                keys.append(self._match(BARE))
            self._match(SPACE)
            if not self._skip("."):
                return keys

    def _resolve(self, keys: list[str]) -> Path:
        """Return the path of a table's name: each array in it stands for its last element."""
        path: Path = ()
        for key in keys:
            path = (*path, key)
            if path in self._arrays:
                path = (*path, self._arrays[path])
        return path

    def _note(self, path: Path, line: int) -> None:
        for length in range(1, len(path) + 1):
            self._lines.setdefault(path[:length], line)
        # A table may be opened after its children were; its own line is what counts for it.

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]

    def _skip(self, word: str) -> bool:
        if self._text.startswith(word, self._at):
            self._at += len(word)
            return True
        return False
