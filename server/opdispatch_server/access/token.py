"""Tokens: their format, and their stored records, which are not secret. No I/O.

A token is ``opd1_ID_SECRET``. Its record has the SHA-256 of the whole token. It is looked up by its
id and compared in constant time, so that the duration reveals nothing about the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from opdispatch_server.access.identity import EVERYTHING, Identity
from opdispatch_server.access.roles import Role, parse_role
from opdispatch_wire.errors import UnauthenticatedError

PREFIX: Final = "opd1"
MAX_TOKENS: Final = 10_000

_ID_BYTES = 8
_SECRET_BYTES = 32
_TOKEN = re.compile(rf"{PREFIX}_([0-9a-f]{{{2 * _ID_BYTES}}})_([A-Za-z0-9_-]{{43}})")
_ID = re.compile(rf"[0-9a-f]{{{2 * _ID_BYTES}}}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_GLOB = re.compile(r"[\w.:*?\[\]!-]{1,200}")
_NAME = re.compile(r"[\w.@+ -]{0,64}")
_LIFETIME = re.compile(r"([1-9][0-9]{0,5})([dhms])")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
# Compared with tokens of unknown ids, so that these take as long as known ones.
_NO_DIGEST = bytes(32)

HOW_TO_GET_ONE: Final = (
    "ask who runs the daemon for a token, and give it as connect(token=...), in OPDISPATCH_TOKEN, "
    "or in a file with OPDISPATCH_TOKEN_FILE or --token-file"
)


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """The record of one token. ``expires`` is a time of ``time.time``, or inf for never."""

    id: str
    digest: bytes
    role: Role
    namespaces: tuple[str, ...] = ()
    expires: float = math.inf
    name: str = ""
    created: float = 0.0

    @property
    def label(self) -> str:
        """Its id and its owner, for messages."""
        return f"token {self.id} ({self.name})" if self.name else f"token {self.id}"

    @property
    def identity(self) -> Identity:
        """The identity that the token authenticates."""
        globs = EVERYTHING if self.role is Role.ADMIN else self.namespaces
        return Identity(self.label, self.role, globs, self.expires, self.id)

    def to_json(self) -> dict[str, Any]:
        """Return the record as in the token file."""
        return {
            "id": self.id,
            "name": self.name,
            "role": self.role.value,
            "namespaces": list(self.namespaces),
            "created": _to_text(self.created),
            "expires": None if math.isinf(self.expires) else _to_text(self.expires),
            "sha256": self.digest.hex(),
        }


class TokenTable:
    """An immutable table of records by token id."""

    def __init__(self, records: Iterable[TokenRecord] = ()) -> None:
        self.records: Mapping[str, TokenRecord] = {record.id: record for record in records}

    def identify(self, token: str, now: float | None = None) -> Identity:
        """Return the identity that a token authenticates.

        ``now`` is a time of ``time.time``, by default the present. Raises UnauthenticatedError for
        a malformed, unknown or expired token.
        """
        found = _TOKEN.fullmatch(token)
        record = self.records.get(found[1]) if found else None
        expected = record.digest if record is not None else _NO_DIGEST
        if not hmac.compare_digest(digest_of(token), expected) or record is None:
            raise UnauthenticatedError(
                "the token is not known here: it is misspelt, revoked, or of another daemon",
                hint=HOW_TO_GET_ONE,
            )
        if record.expires <= (time.time() if now is None else now):
            raise UnauthenticatedError(
                f"{record.label} has expired at {_to_text(record.expires)}", hint=HOW_TO_GET_ONE
            )
        return record.identity

    def holds(self, identity: Identity, now: float) -> bool:
        """Return whether the token of an identity exists, unchanged and not expired."""
        record = self.records.get(identity.token)
        return record is not None and record.identity == identity and record.expires > now


def new_token(
    role: Role,
    namespaces: Iterable[str] = (),
    *,
    name: str = "",
    expires: float = math.inf,
    now: float,
) -> tuple[str, TokenRecord]:
    """Return a new token, which is secret, and its record, which is not.

    Raises ValueError for an invalid name or glob, or a role without the namespaces it needs.
    """
    number = secrets.token_hex(_ID_BYTES)
    token = f"{PREFIX}_{number}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    record = TokenRecord(
        number, digest_of(token), role, tuple(namespaces), expires, name, created=now
    )
    _check(record)
    return token, record


def digest_of(token: str) -> bytes:
    """Return the SHA-256 of a token."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def parse_lifetime(text: str) -> float:
    """Return the seconds in ``30d``, ``12h``, ``15m`` or ``never``. Raises ValueError."""
    if text == "never":
        return math.inf
    found = _LIFETIME.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text[:40]!r} is not a lifetime; expected one such as 30d, 12h, 15m or never"
        )
    return float(int(found[1]) * _SECONDS[found[2]])


def dump_tokens(table: TokenTable) -> str:
    """Return the content of a token file."""
    records = [record.to_json() for record in table.records.values()]
    return json.dumps({"version": 1, "tokens": records}, indent=2) + "\n"


def parse_tokens(text: str) -> TokenTable:
    """Return the table in a token file's text.

    Raises ValueError, whose message has the JSON path and the problem.
    """
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("$ is nested too deep") from None
    if not isinstance(content, dict) or content.get("version") != 1:
        raise ValueError('$.version is missing or unknown; expected {"version": 1')
    entries = content.get("tokens")
    if not isinstance(entries, list) or len(entries) > MAX_TOKENS:
        raise ValueError(f"$.tokens is not a list of at most {MAX_TOKENS} tokens")
    records = [_parse_record(entry, f"$.tokens[{i}]") for i, entry in enumerate(entries)]
    table = TokenTable(records)
    if len(table.records) != len(records):
        raise ValueError("$.tokens has two tokens with one id")
    return table


def _parse_record(entry: object, at: str) -> TokenRecord:
    if not isinstance(entry, dict):
        raise ValueError(f"{at} is not an object")
    namespaces, digest = entry.get("namespaces", []), entry.get("sha256")
    if not isinstance(namespaces, list) or not all(isinstance(g, str) for g in namespaces):
        raise ValueError(f"{at}.namespaces is not a list of globs")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"{at}.sha256 is not a SHA-256 digest in hexadecimal")
    try:
        expires = entry.get("expires")
        record = TokenRecord(
            id=str(entry.get("id")),
            digest=bytes.fromhex(digest),
            role=parse_role(str(entry.get("role"))),
            namespaces=tuple(namespaces),
            expires=math.inf if expires is None else _parse_time(expires),
            name=str(entry.get("name", "")),
            created=_parse_time(entry["created"]) if entry.get("created") else 0.0,
        )
        _check(record)
    except ValueError as error:
        raise ValueError(f"{at}: {error}") from None
    return record


def _check(record: TokenRecord) -> None:
    if not _ID.fullmatch(record.id):
        raise ValueError(f"the id does not have {2 * _ID_BYTES} hexadecimal digits")
    if not _NAME.fullmatch(record.name):
        raise ValueError(
            f"{record.name[:80]!r} cannot be the name of a token; expected at most 64 letters, "
            "digits, spaces and any of _.@+-"
        )
    for glob in record.namespaces:
        if not _GLOB.fullmatch(glob):
            raise ValueError(f"{glob[:80]!r} is not a glob for operators, such as 'image::*'")
    if record.role is Role.LOAD and not record.namespaces:
        raise ValueError("the role load needs a namespace, such as 'image::*', or '*' for all")


def _to_text(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parse_time(text: object) -> float:
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a time; expected one such as 2027-01-31T12:00:00Z")
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
