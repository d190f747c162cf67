"""TLS contexts from files, with errors that name the setting."""

import ssl
from pathlib import Path

from pydantic import SecretStr

from afterword.streams.errors import ConfigurationError


def verifying_context(ca_file: Path | None = None, setting: str = "") -> ssl.SSLContext:
    """Make a context that verifies the server's certificate and name against the CAs in a PEM file.

    Without a file, these are the system's; OpenSSL also reads the variables SSL_CERT_FILE and SSL_CERT_DIR.
    Raises: ConfigurationError.
    """
    require_file(ca_file, setting)
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise ConfigurationError(setting=setting, problem=f"{ca_file}: no certificates in PEM") from None


def add_client_certificate(
    context: ssl.SSLContext, cert_file: Path, key_file: Path | None, password: SecretStr | None, setting: str
) -> None:
    """Add a client certificate with its chain; the key may be in the same file. Raises: ConfigurationError."""
    require_file(cert_file, setting)
    require_file(key_file, setting)
    try:
        # a function, because OpenSSL would prompt at the terminal for a missing password
        context.load_cert_chain(cert_file, key_file, lambda: password.get_secret_value() if password else "")
    except ssl.SSLError as error:
        why = error.reason or "not PEM, or the key's password is wrong"
        raise ConfigurationError(setting=setting, problem=f"{cert_file}: cannot be used with its key: {why}") from None


def require_file(file: Path | None, setting: str) -> None:
    """Check that a file can be read. Raises: ConfigurationError."""
    try:
        if file is not None:
            file.open("rb").close()
    except OSError as error:
        raise ConfigurationError(setting=setting, problem=f"{file}: {error.strerror}") from None
