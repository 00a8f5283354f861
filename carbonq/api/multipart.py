"""Read a ``multipart/form-data`` body as it streams: small fields into memory, the one file piece by piece.

Bounded whatever comes: the number of parts, the size of headers and of fields, and how much of the file is at hand.
"""

from __future__ import annotations

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from carbonq.errors import InvalidRequest

#: Parts, bytes of one field, characters of a field's or file's name.
MAX_PARTS, MAX_FIELD_BYTES, MAX_NAME_CHARS = 64, 16 * 1024, 255


class Form:
    """A form being read. ``fields`` are its texts in their order; ``filename`` is None until the file begins."""

    def __init__(self, content_type: str, *, file_field: str = "file") -> None:
        """Begin with the request's Content-Type. Raises InvalidRequest where that is no form."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 0 < len(boundary) <= 200:
            raise InvalidRequest(
                f"Content-Type {content_type[:80]!r} is not taken; send multipart/form-data with the parts purpose "
                f"and {file_field}",
                param="Content-Type",
                code="unsupported_media_type",
            )
        self.fields: list[tuple[str, str]] = []
        self.filename: str | None = None
        self.is_whole = False
        self._file_field = file_field
        self._pending = bytearray()
        self._field, self._value = "", bytearray()
        self._headers: dict[str, str] = {}
        self._header, self._said = bytearray(), bytearray()
        self._is_file, self._parts = False, 0
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begins,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_ends,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_part_end": self._part_ends,
                "on_end": self._ends,
            },
        )

    @property
    def pending_bytes(self) -> int:
        """How many bytes of the file wait to be taken."""
        return len(self._pending)

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the body. Raises InvalidRequest."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidRequest(f"the body is no multipart form: {error}", code="invalid_multipart") from None

    def take(self) -> bytes:
        """Return the bytes of the file that have come since the last call."""
        taken = bytes(self._pending)
        self._pending.clear()
        return taken

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidRequest(f"the form has more than {MAX_PARTS} parts", code="invalid_multipart")
        self._headers = {}

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._said += data[start:end]

    def _header_ends(self) -> None:
        self._headers[self._header.decode("latin-1").lower()] = self._said.decode("latin-1")
        self._header.clear()
        self._said.clear()

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition"))
        name = _text(options.get(b"name", b""), "the name of a part")
        if not 0 < len(name) <= MAX_NAME_CHARS:
            raise InvalidRequest(
                f"a part of the form needs a name of 1 to {MAX_NAME_CHARS} characters in its Content-Disposition",
                code="invalid_multipart",
            )
        self._field, self._is_file = name, name == self._file_field
        if not self._is_file:
            return
        if self.filename is not None:
            raise InvalidRequest(f"{name} is given twice; upload one file at a time", param=name)
        filename = _text(options.get(b"filename", b""), "the file's name")
        if not filename or len(filename) > MAX_NAME_CHARS or not filename.isprintable():
            raise InvalidRequest(
                f"{name} needs a file name of 1 to {MAX_NAME_CHARS} printable characters: send it as a file, not as "
                "text",
                param=name,
            )
        self.filename = filename

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._pending += data[start:end]
            return
        if len(self._value) + end - start > MAX_FIELD_BYTES:
            raise InvalidRequest(
                f"{self._field} has more than {MAX_FIELD_BYTES:,} bytes; only {self._file_field} may be long",
                param=self._field,
            )
        self._value += data[start:end]

    def _part_ends(self) -> None:
        if not self._is_file:
            self.fields.append((self._field, _text(bytes(self._value), self._field)))
            self._value.clear()

    def _ends(self) -> None:
        self.is_whole = True


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{what} is not UTF-8 text", code="invalid_multipart") from None
