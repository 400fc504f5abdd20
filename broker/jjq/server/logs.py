"""What a broker says of itself: JSON, one object a line, without secrets."""

from __future__ import annotations

import json
import logging
import logging.handlers
import re
import sys
import traceback

from jjq import files
from jjq.clock import iso
from jjq.server.settings import ServerSettings
from jjq.server.tokens import TOKEN_PREFIX

_SECRET = re.compile(rf"{TOKEN_PREFIX}[\w-]{{20,}}|(?i:bearer)\s+[\w.~+/=-]+")


class JsonLines(logging.Formatter):
    """`at`, `level`, `logger`, `message`, whatever the caller gave as `extra={"fields": {...}}`, and `error`."""

    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, object] = {
            "at": iso(int(record.created * 1_000_000)), "level": record.levelname.lower(), "logger": record.name,
            "message": record.getMessage(),
        }  # fmt: skip
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            body |= {key: value for key, value in fields.items() if key not in body}
        if record.exc_info and record.exc_info[0] is not None:
            body["error"] = "".join(traceback.format_exception(*record.exc_info))
        return masked(json.dumps(body, ensure_ascii=False, default=str))


def masked(text: str) -> str:
    """Without tokens, wherever they came from."""
    return _SECRET.sub("***", text)


def begin(settings: ServerSettings) -> None:
    """Everything that is logged in this process goes to the standard error from now on, and the audit log to its file."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of others' libraries
    logging.getLogger("jjq").setLevel(settings.log_level.upper())
    audit = logging.getLogger("jjq.audit")
    audit.setLevel(logging.INFO)  # whatever else is left out
    if settings.audit_log is not None:
        with files.translated("write", settings.audit_log):
            # Opened anew when it was moved away, as logrotate does.
            to_file = logging.handlers.WatchedFileHandler(settings.audit_log, encoding="utf-8")
        to_file.setFormatter(JsonLines())
        audit.handlers[:] = [to_file]
        audit.propagate = False
