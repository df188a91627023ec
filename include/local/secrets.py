"""Passwords and keys of a local stack: made at its first start, kept in its state folder."""

from __future__ import annotations

import base64
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Secrets:
    """All of them are random; none is a default anyone could guess."""

    admin_password: str
    viewer_password: str
    postgres_password: str
    jwt_secret: str
    api_secret_key: str
    fernet_key: str

    @property
    def passwords(self) -> dict[str, str]:
        """Airflow's users and their passwords."""
        return {"admin": self.admin_password, "viewer": self.viewer_password}


def load_secrets(file: Path, passwords_file: Path) -> Secrets:
    """Read the secrets, or make them; also writes the password file Airflow's simple auth reads."""
    if file.exists():
        found = Secrets(**json.loads(file.read_text(encoding="utf-8")))
    else:
        found = Secrets(
            admin_password=secrets.token_urlsafe(9),
            viewer_password=secrets.token_urlsafe(9),
            postgres_password=secrets.token_urlsafe(24),
            jwt_secret=secrets.token_urlsafe(48),
            api_secret_key=secrets.token_urlsafe(48),
            fernet_key=base64.urlsafe_b64encode(os.urandom(32)).decode(),
        )
        write_private(file, json.dumps(asdict(found), indent=2))
    write_private(passwords_file, json.dumps(found.passwords))
    return found


def write_private(file: Path, text: str) -> None:
    """Whole or not at all, and readable by its owner only."""
    temporary = file.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    temporary.replace(file)
