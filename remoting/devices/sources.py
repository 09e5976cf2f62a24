"""Checks of kernel source and compiler options: a kernel may not read files of the server."""

import re

from gpupool.remoting.devices.base import UnsupportedError

SOURCE_MAX = 1 << 20
LOG_MAX = 64 << 10
"""Characters of a compiler's log that go to the client."""
_INCLUDE = re.compile(
    r"(?:#|%:|\?\?=)(?:\s|/\*.*?\*/)*(include_next|include|import|embed)\b(.*?)$",
    re.MULTILINE | re.DOTALL,
)
# A header of the toolkit or of CuPy, by a relative name without a step upwards.
_HEADER = re.compile(r"\s*(<[A-Za-z0-9_][A-Za-z0-9_/.+-]*>|\"[A-Za-z0-9_][A-Za-z0-9_/.+-]*\")")
_FORBIDDEN = re.compile(r"__has_include|__has_embed|\.incbin")
_OPTION = re.compile(
    r"(?:-D|--define-macro=|-U|--undefine-macro=)[A-Za-z_]\w*(?:=[\w.+-]*)?"
    r"|(?:-std|--std)=c\+\+\d\d"
    r"|(?:--use_fast_math|-use_fast_math|--fmad=\w+|-fmad=\w+|--ftz=\w+|-ftz=\w+)"
    r"|(?:--prec-div=\w+|--prec-sqrt=\w+|-lineinfo|--generate-line-info|-G|--device-debug)"
    r"|(?:-maxrregcount|--maxrregcount)=\d+|--extra-device-vectorization|-w|--restrict"
    r"|--device-as-default-execution-space|-default-device|--relocatable-device-code=\w+|-dc"
)


def check_source(*texts: str) -> None:
    """Raise if a text could make the compiler read anything but its own headers.

    Each text is searched as a whole, comments included, because the pieces of an elementwise
    kernel are joined and one could open a comment that hides what another contains.

    Raises:
        UnsupportedError: with the directive in question.
    """
    for text in texts:
        if len(text) > SOURCE_MAX:
            raise UnsupportedError(f"kernel source of {len(text):,} characters is too long")
        joined = re.sub(r"(?:\\|\?\?/)[ \t]*\r?\n", "", text)
        for found in _INCLUDE.finditer(joined):
            header = _HEADER.match(found[2])
            if found[1] != "include" or header is None or ".." in header[1]:
                line = found[0].strip().splitlines()[0][:80]
                raise UnsupportedError(
                    f"{line!r}: on a remote GPU only headers of CUDA and CuPy can be included; "
                    "paste your own into the source"
                )
        if _FORBIDDEN.search(joined):
            raise UnsupportedError(
                "the source asks about files of the server, which is not allowed"
            )


def check_options(options: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return compiler options that neither read nor write files; raise for any other.

    Raises:
        UnsupportedError: with the option in question.
    """
    for option in options:
        if not _OPTION.fullmatch(option):
            raise UnsupportedError(f"compiler option {option!r} is not allowed on a remote GPU")
    return tuple(options)


def bounded_log(text: str) -> str:
    """Return a compiler's log, cut off where it is too long to be sent."""
    if len(text) <= LOG_MAX:
        return text
    return f"{text[:LOG_MAX]}\n({len(text) - LOG_MAX:,} more characters of the log are left out)\n"
