"""The SQL of the database roles, as ``carbonq db roles`` prints it."""

from __future__ import annotations

import re
from pathlib import Path

from carbonq.errors import ConfigError, InvalidRequest

#: How the names of the roles begin in the file.
PREFIX = "carbonq_"

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")


def roles_sql(prefix: str = PREFIX) -> str:
    """Return the script with role names that begin with ``prefix``: roles belong to the server, not to a database.

    Raises InvalidRequest for a prefix that is no plain name, ConfigError when the installation lacks the script.
    """
    if _NAME.fullmatch(prefix) is None:
        raise InvalidRequest(f"prefix {prefix!r} is no plain name: small letters, digits, _", param="prefix")
    here = Path(__file__).resolve().parents[1]
    for place in (here, here.parent):  # inside carbonq/ in a wheel, beside it in a checkout
        script = place / "ops" / "postgres" / "roles.sql"
        if script.is_file():
            return re.sub(rf"\b{PREFIX}", prefix, script.read_text(encoding="utf-8"))
    raise ConfigError("ops/postgres/roles.sql is missing from this installation; reinstall carbonq")
