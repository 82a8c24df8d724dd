"""Files as text, gzipped or not, with refusals that name them."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxsim._trace_columns import refusal


@contextmanager
def text_of(path: Path) -> Iterator[io.TextIOBase]:
    """The file as UTF-8 text, unzipped where it is gzipped, a byte order mark removed.

    Raises:
        ValueError: not UTF-8, or a damaged gzip file.
    """
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as text:
            yield text
    except UnicodeDecodeError as error:
        raise refusal(path.name, f"not UTF-8 text ({error.reason})", "save it as UTF-8") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise refusal(path.name, f"damaged gzip file ({error})", "fetch or compress it again") from error
