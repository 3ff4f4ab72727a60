"""How Google's services refuse: the shapes of their errors."""

from __future__ import annotations

from typing import Any

Page = dict[str, Any]

STATUS_BY_CODE = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_REASON_BY_CODE = {
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "alreadyExists",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    500: "backendError",
    503: "backendError",
}
_SHORT = {"compute", "storage"}  # the services whose errors have a list of reasons, and mostly no status


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """An answer that is an error.

    Attributes:
        code: The HTTP status.
        message: What the service says.
        word: Of ``status``, or of ``reason`` where the service is compute or storage; "" for the usual one.
        reason: Of an ErrorInfo among the details; "" for none.
        metadata: Of that ErrorInfo.
        violation: An organization policy, of a PreconditionFailure among the details; "" for none.
    """

    violation = ""

    def __init__(
        self, code: int, message: str, word: str = "", *, reason: str = "", metadata: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.word = code, message, word
        self.reason, self.metadata = reason, metadata or {}

    def page(self, service: str) -> Page:
        """Write the error as a service does."""
        details = [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": self.reason,
                "domain": "googleapis.com",
                "metadata": self.metadata,
            }
        ]
        if self.violation:
            failure = {"type": self.violation, "subject": "projects/1", "description": self.message}
            details = [{"@type": "type.googleapis.com/google.rpc.PreconditionFailure", "violations": [failure]}]
        error: Page = {"code": self.code, "message": self.message}
        if service in _SHORT:
            word = self.word or _REASON_BY_CODE.get(self.code, "invalid")
            error["errors"] = [{"domain": "global", "message": self.message, "reason": word}]
        else:
            error["status"] = self.word or STATUS_BY_CODE.get(self.code, "UNKNOWN")
        return {"error": error | ({"details": details} if self.reason or self.violation else {})}


def missing(what: str) -> Refusal:
    """Refuse what does not exist."""
    return Refusal(404, f"The resource '{what}' was not found")


def denied(permission: str, resource: str) -> Refusal:
    """Refuse what this account may not do."""
    return Refusal(
        403,
        f"Permission '{permission}' denied on resource '{resource}' (or it may not exist).",
        reason="IAM_PERMISSION_DENIED",
        metadata={"permission": permission, "resource": resource},
    )


def disabled(api: str, project: str, number: str) -> Refusal:
    """Refuse the request to a service that is off."""
    return Refusal(
        403,
        f"{api} has not been used in project {project} before or it is disabled. Enable it, then retry. If you "
        "enabled this API recently, wait a few minutes for the action to propagate to our systems and retry.",
        reason="SERVICE_DISABLED",
        metadata={"service": api, "consumer": f"projects/{number}"},
    )


def violated(constraint: str, service: str, number: str) -> Refusal:
    """Refuse what an organization policy forbids; IAM names the policy among the details only."""
    if service != "iam":
        return Refusal(412, f"Constraint {constraint} violated for project {number}.", "conditionNotMet")
    found = Refusal(400, "Service account creation is not allowed on this project.", "FAILED_PRECONDITION")
    found.violation = constraint
    return found
