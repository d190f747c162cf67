"""MongoDB's connection string and TLS: what the driver is given, and what its complaints become."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymongo.errors import PyMongoError

from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Mongo, variable
from afterword.streams.tls import present, trusting


def tls_options(settings: Mongo) -> dict[str, Any]:
    """Only what is set, for the URI may say the same. Raises: ConfigurationError when a file cannot be used."""
    options: dict[str, Any] = {}
    # read here first, because of a file that is no good the driver says no more than that something is wrong
    context = trusting(settings.tls_ca_file, variable(("mongo", "tls_ca_file")))
    if settings.tls_ca_file:
        options |= {"tls": True, "tlsCAFile": str(settings.tls_ca_file)}
    if settings.tls_cert_file:
        setting = variable(("mongo", "tls_cert_file"))
        present(context, settings.tls_cert_file, None, settings.tls_key_password, setting)
        options |= {"tls": True, "tlsCertificateKeyFile": str(settings.tls_cert_file)}
    if settings.tls_key_password:
        options["tlsCertificateKeyFilePassword"] = settings.tls_key_password.get_secret_value()
    return options


@contextmanager
def usable() -> Iterator[None]:
    """Turns what the driver thinks of a connection string into ConfigurationError, without its text, which may quote.

    Its warnings too: it leaves out an option that it does not understand, and would connect without TLS where somebody
    wrote `tls=yes`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            yield
    except UserWarning:
        raise _unusable("an option in it is unknown, or its value is not one it can have") from None
    except (PyMongoError, ValueError, TypeError, OSError) as error:
        raise _unusable(f"it cannot be used: {type(error).__name__}") from None


def _unusable(problem: str) -> ConfigurationError:
    return ConfigurationError(setting=variable(("mongo", "uri")), problem=problem)
