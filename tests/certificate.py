"""A certificate that a server of the tests signs for itself."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.address import HOST

__all__ = ["Certificate"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as files. Both are good for a day."""

    key: Path
    certificate: Path

    @classmethod
    def make(cls, directory: Path) -> Self:
        """Makes one in `directory`, with the ``openssl`` program."""
        made = cls(directory / "key.pem", directory / "certificate.pem")
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-nodes", "-days", "1"),
                *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                *("-subj", f"/CN={HOST}", "-addext", f"subjectAltName=IP:{HOST}"),
                *("-keyout", str(made.key), "-out", str(made.certificate)),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        return made
