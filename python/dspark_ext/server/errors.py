"""Errors as OpenAI's clients read them: JSON with a message, a type, a parameter and a code."""

from __future__ import annotations

from starlette.responses import JSONResponse

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable",
}


class ApiError(Exception):
    """A request that is refused, and why.

    param  the field of the body that is wrong
    code   a word for programs
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else _TYPES[400])
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        headers = {}
        if self.status in (429, 503):
            headers["retry-after"] = "1"
        if self.status in (408, 413):  # the rest of the body is not read
            headers["connection"] = "close"
        return JSONResponse(self.body(), self.status, headers)


def invalid(
    param: str, message: str, code: str = "invalid_value", shown_as: str | None = None
) -> ApiError:
    return ApiError(400, f"{shown_as or param}: {message}", param, code)
