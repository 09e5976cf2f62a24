"""The file in which an operator edits a policy: removed after, unless its text is worth keeping."""

import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from gpupool.remoting.local.files import lent_folder

PREFIX = "gpupool-policy-"
DRAFT, BEFORE = "policy.toml", "before.toml"


@contextmanager
def draft_of(text: str) -> Generator[Path, None, None]:
    """Yield a file with ``text`` in a temporary folder; remove killed editors' drafts first."""
    with lent_folder(PREFIX, keeps=was_edited) as folder:
        try:
            for name in (BEFORE, DRAFT):
                (folder / name).write_text(text, encoding="utf-8")
            yield folder / DRAFT
        except KeyboardInterrupt:
            if was_edited(folder):
                sys.stderr.write(f"\nyour text is kept in {keep(folder / DRAFT)}\n")
            raise


def was_edited(folder: Path) -> bool:
    """Return whether a folder has a text that nobody has but its operator."""
    try:
        return (folder / DRAFT).read_bytes() != (folder / BEFORE).read_bytes()
    except OSError:
        return False


def keep(draft: Path) -> str:
    """Copy a draft to a file that no command removes, and return its path."""
    handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=".toml")
    with os.fdopen(handle, "wb") as stream:
        stream.write(draft.read_bytes())
    return name
