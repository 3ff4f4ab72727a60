"""A login without Google: tokens that are handed out in their order."""

from __future__ import annotations


class Tokens:
    """Hands out tokens from a list; the last one again and again."""

    def __init__(self, *tokens: str, project: str = "") -> None:
        self.quota_project = project
        self.refused: list[str] = []
        self._tokens = list(tokens or ["token"])

    def get(self, rejected: str = "") -> str:
        if rejected:
            self.refused.append(rejected)
            self._tokens = self._tokens[1:] or self._tokens
        return self._tokens[0]
