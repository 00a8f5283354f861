"""Choose the store of blobs by its URL: a folder, or a bucket."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from carbonq.blobs.folder import FolderStore
from carbonq.blobs.protocol import BlobStore
from carbonq.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

#: What may stand behind the question mark of a URL, by scheme. Secrets may not: a URL is shown and logged.
OPTIONS: dict[str, Sequence[str]] = {
    "s3": ("endpoint", "region", "virtual_hosted_style_request"),
    "gs": (),
    "az": ("account_name", "endpoint"),
}

#: A dead endpoint is said within about 10 s: no connection in 3 s, or 9 s without a byte, and nothing new after 6 s.
CONNECT_TIMEOUT_S = 3
SILENCE_TIMEOUT_S = 9
RETRY_FOR_S = 6
MAX_RETRIES = 3

#: Longest request, in seconds; no request carries more than 16 MiB.
REQUEST_TIMEOUT_S = 60


def open_store(url: str, *, spool: Path, access_key: tuple[str, str] | None = None) -> BlobStore:
    """Return the store of a URL; nothing is asked of it yet.

    ``url`` is a folder, ``file:///folder``, ``s3://bucket/prefix?endpoint=...&region=...``, ``gs://bucket/prefix`` or
    ``az://container/prefix``. Credentials come from ``access_key`` (id and secret; S3 only), else from where the
    library looks itself: ``AWS_*``, ``GOOGLE_*``, ``AZURE_*`` in the environment, or the role of the host. ``spool`` is
    a local folder for temporary files. Raises ConfigError.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return FolderStore(Path(url).expanduser())
    if scheme == "file":
        if not rest.startswith("/"):
            raise ConfigError(f"blob_url file://{rest} names no folder; write file:///folder")
        return FolderStore(Path(unquote(rest)))
    if scheme not in OPTIONS:
        raise ConfigError(
            f"blob_url begins with {scheme}://; a folder, file:///, s3://, gs:// and az:// are known here"
        )
    return _bucket(url, scheme, spool, access_key)


def _bucket(url: str, scheme: str, spool: Path, access_key: tuple[str, str] | None) -> BlobStore:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "blob_url holds a user or password; leave them out and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if not parts.hostname:
        raise ConfigError(f"blob_url {scheme}:// names no bucket; write {scheme}://bucket/prefix")
    name = f"{scheme}://{parts.netloc}{parts.path}"
    config: Any = _options(name, scheme, parts.query)
    if access_key is not None and scheme == "s3":
        config["access_key_id"], config["secret_access_key"] = access_key
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "read_timeout": timedelta(seconds=SILENCE_TIMEOUT_S),
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
        # Without an endpoint here one may stand in the environment; only an operator names either.
        "allow_http": not str(config.get("endpoint", "")).startswith("https://"),
    }
    retry: RetryConfig = {
        "max_retries": MAX_RETRIES,
        "retry_timeout": timedelta(seconds=RETRY_FOR_S),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=1),
            "base": 2,
        },
    }
    try:
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore, GCSStore, S3Store

        from carbonq.blobs.objects import ObjectStore
    except ModuleNotFoundError as error:
        raise ConfigError(f"blob_url {name} needs the extra s3: pip install 'carbonq[s3]'") from error
    kinds = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    try:
        bucket = kinds[scheme].from_url(name, config=config, client_options=client, retry_config=retry)
    except (BaseError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(f"blob_url {name} cannot be used: {said}") from None
    return ObjectStore(bucket, name=name, spool=spool)


def _options(name: str, scheme: str, query: str) -> dict[str, str]:
    known = OPTIONS[scheme]
    options: dict[str, str] = {}
    for option, value in parse_qsl(query, keep_blank_values=True):
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]}" if near else f"known are: {', '.join(known) or 'none'}"
            raise ConfigError(
                f"blob_url {name} has the option {option!r}; {hint}. Credentials do not belong there: set them as "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        if option == "endpoint" and not value.startswith(("http://", "https://")):
            raise ConfigError(f"blob_url {name}: the endpoint must begin with http:// or https://")
        options[option] = value
    return options
