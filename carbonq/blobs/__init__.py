"""Keep inputs, result segments and output files, so that a key either names whole bytes or nothing.

``protocol`` says what callers need; ``folder`` and ``objects`` keep it; ``open_store`` chooses by URL. Sizes are bytes.
"""

from __future__ import annotations

from carbonq.blobs.opening import open_store
from carbonq.blobs.protocol import BlobInfo, BlobStore, Ranges, Staged

__all__ = ["BlobInfo", "BlobStore", "Ranges", "Staged", "open_store"]
