"""Errors of kernels by the names that CuPy gives them: the client makes its own of these."""


class CompileException(Exception):
    """A kernel did not compile; the text is the compiler's."""


class CUDARuntimeError(RuntimeError):
    """A launch failed; ``status`` is CUDA's number of the error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class CUDADriverError(RuntimeError):
    """A function is missing, or a launch is none that a GPU takes."""
