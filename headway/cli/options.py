"""What several commands share: options, and how they log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from headway.dispatch.security import MutualTls, Security, SharedSecret
from headway.errors import SetupError

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="Path of the configuration file.")]
DEFAULT_CONFIG = Path("headway.toml")
ApiKey = Annotated[
    str | None, typer.Option("--key", envvar="HEADWAY_KEY", help="API key, if the gateway requires one.")
]
ParentPipe = Annotated[
    int | None, typer.Option(help="File descriptor of a pipe: when its other end closes, end.", hidden=True)
]
SecretFile = Annotated[
    Path | None,
    typer.Option(help="File with the secret that dispatchers and relays share, such as `openssl rand -hex 32` makes."),
]
Certificate = Annotated[
    Path | None, typer.Option(help="For mutual TLS instead of a secret: this process's certificate, in PEM.")
]
CertificateKey = Annotated[Path | None, typer.Option("--key", help="The key of the certificate, without a password.")]
Authority = Annotated[Path | None, typer.Option("--ca", help="The CA of the other side's certificates.")]

Profile = Annotated[
    str | None, typer.Option(help="Profile that the engine was started with: prints its [[models.profiles]] to paste.")
]


def security_of(secret_file: Path | None, certificate: Path | None, key: Path | None, ca: Path | None) -> Security:
    """Raises SetupError if the files of these options do not fit together."""
    files = (certificate, key, ca)
    if secret_file is not None and any(files):
        raise SetupError("--secret-file and certificates are two ways to trust each other: use one of them.")
    if secret_file is not None:
        try:
            return SharedSecret(secret_file.read_bytes().strip())
        except OSError as error:
            raise SetupError(f"Cannot read {secret_file}: {error.strerror}.") from error
    if certificate is not None and key is not None and ca is not None:
        return MutualTls(certificate, key, ca)
    if any(files):
        raise SetupError("Mutual TLS needs all three: --certificate, --key and --ca.")
    return None


def log_to_stderr(level: int, process: str = "") -> None:
    """`process` is the name of this one, if several write to the same file."""
    of_process = f"{process} " if process else ""
    logging.basicConfig(level=level, format=f"%(asctime)s %(levelname)s {of_process}%(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
