"""Optional dependencies: what is imported from an extra that is not installed ends in one line that names the extra."""

from collections.abc import Iterator
from contextlib import contextmanager

from afterword.streams.errors import AfterwordError

OURS = "afterword"


class ExtraMissing(AfterwordError, ImportError):
    """{what} needs: pip install 'afterword[{extra}]'"""


@contextmanager
def extra_required(extra: str, what: str) -> Iterator[None]:
    """Translate the failed import of another project's module. Raises: ExtraMissing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or OURS).partition(".")[0] == OURS:
            raise
        raise ExtraMissing(what=what, extra=extra) from error
